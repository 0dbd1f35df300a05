"""Where a request ends in the bytes of its connection, as far as those who go on with it must know."""

from __future__ import annotations

import re

CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
LAST_CHUNK = b"0\r\n\r\n"  # of a chunked body


def behind_first(data: bytes) -> bytes | None:
    """What stands behind the first request; None where that is not plain to see."""
    head, end, body = data.lstrip(b"\r\n").partition(b"\r\n\r\n")
    if not end:
        return None
    if CHUNKED.search(head):
        return _behind_chunks(body)
    length = re.search(rb"\r\ncontent-length:[ \t]*(\d+)", head, re.IGNORECASE)
    size = int(length[1]) if length else 0
    return body[size:] if len(body) >= size else None


def _behind_chunks(body: bytes) -> bytes | None:
    """What stands behind a chunked body; None if its end is not here, or has trailers."""
    while line := re.match(rb"([0-9a-fA-F]+)[^\r]*\r\n", body):
        size = int(line[1], 16)
        end = line.end() + size
        if body[end : end + 2] != b"\r\n":
            return None
        body = body[end + 2 :]
        if not size:
            return body
    return None
