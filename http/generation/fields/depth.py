"""How deep a body may be nested."""

from __future__ import annotations

import codecs
from itertools import accumulate

from ...errors import bad_request

MAX_DEPTH = 128
STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: 1 and -1
NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def check_depth(body: bytes, whole: str = "body") -> bytes:
    """The body, unless it is nested so deeply that whatever walks through it, here or in another actor, might fall.

    Most bodies have too few brackets for that, which is soon seen; what is no JSON is refused elsewhere. A mark of
    UTF-8, as Windows' editors and shells write it before a text, is passed over.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    if _has_many_brackets(body) and _depth(body) > MAX_DEPTH:
        raise bad_request(f"The {whole} is nested too deeply: at most {MAX_DEPTH} levels are taken.")
    return body


def _has_many_brackets(body: bytes) -> bool:
    """Enough to be too deep. Where they are rare, find() is ten times as fast as count()."""
    many = 0
    for bracket in (b"[", b"{"):
        at = body.find(bracket)
        while at >= 0:
            many += 1
            if many > MAX_DEPTH:
                return True
            at = body.find(bracket, at + 1)
    return False


def _depth(body: bytes) -> int:
    outside, in_string = [], False  # of strings
    for part in body.split(b'"'):
        if not in_string:
            outside.append(part)
            in_string = True
        elif not part.endswith(b"\\") or (len(part) - len(part.rstrip(b"\\"))) % 2 == 0:
            in_string = False
    steps = b"".join(outside).translate(STEPS, NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0)
