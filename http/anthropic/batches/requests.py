"""The requests of POST /v1/messages/batches, cut out of its body as it comes: there may be 100,000 of them.

What is not held as a whole is not decoded as a whole, either. Each request is cut out where its brackets close, and
decoded by itself; null takes its place in what stands around all of them, which is decoded at the end.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ...errors import ApiError, bad_request
from ...generation.fields.decoding import decode
from ...generation.fields.depth import check_depth

MOST_REQUESTS = 100_000  # as in Anthropic's API, and so are these two
MOST_BYTES = 256 << 20  # of a body
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MOST_AROUND = 4 << 20  # bytes beside requests
MOST_BETWEEN = 1 << 10  # of these, between the list's name and where it opens
NAME_BYTES = 160  # that a custom_id takes, in a set
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|' + STRING + rb")*+([{}\[\]])?", re.DOTALL)  # or to a string without an end
TO_QUOTE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)  # or to where it may go on
LIST = re.compile(rb'(?<!\\)"requests"\s*:\s*\Z')
IN_LIST = 2  # the depth at which its requests stand


class _Request(msgspec.Struct):
    custom_id: str
    params: dict[str, msgspec.Raw]


class _Around(msgspec.Struct):
    requests: list[Any]


class RequestCutter:
    """`take` the body piece by piece: lines of a batch, in OpenAI's form, come of it. `finish` it behind the last."""

    def __init__(self, url: str, longest: int) -> None:
        """`url`: that is asked; `longest`: bytes of a request."""
        self._url, self._longest = url, longest
        self._data = b""  # of the body, from where a request began, or what was not looked at
        self._begin = self._at = 0  # in it: what was not cut out or passed yet, what was not looked at
        self._in_list = self._in_request = self._in_string = False
        self._depth = 0
        self._around = bytearray()
        self._names = set[str]()

    @property
    def total(self) -> int:
        """Requests that have come."""
        return len(self._names)

    @property
    def held(self) -> int:
        """Bytes, of what has come."""
        return len(self._data) + len(self._around) + NAME_BYTES * self.total

    def take(self, piece: bytes) -> bytes:
        """Of requests that are whole by now."""
        self._data, self._begin = self._data + piece, 0
        lines = []
        while bracket := self._next_bracket():
            if bracket in b"{[":
                self._open(bracket)
            elif (line := self._close()) is not None:
                lines.append(line)
        if not self._in_request:
            self._pass(self._at)
        if len(self._data) - self._begin > self._longest:
            raise self._too_long()
        self._data, self._at = self._data[self._begin :], self._at - self._begin
        return b"".join(lines)

    def _next_bracket(self) -> bytes | None:
        """Outside of strings; None: more has to come first."""
        if self._in_string:
            self._pass_string()
        if self._in_string:
            return None
        found = TO_BRACKET.match(self._data, self._at)
        assert found is not None, "it matches nothing, too"
        self._at = found.end()
        if self._at < len(self._data) and not found[1]:  # a string whose end has not come
            self._at += 1
            self._pass_string()
        return found[1]

    def _pass_string(self) -> None:
        """The rest of it, as far as it has come: nothing is looked at twice."""
        found = TO_QUOTE.match(self._data, self._at)
        assert found is not None, "it matches nothing, too"
        self._at, self._in_string = found.end(), not found[1]

    def _open(self, bracket: bytes) -> None:
        if self._depth == IN_LIST and self._in_list and bracket == b"{":
            self._pass(self._at - 1)
            self._around += b"null"
            self._in_request = True
        elif self._depth == IN_LIST - 1:
            self._pass(self._at - 1)
            self._in_list = bracket == b"[" and LIST.search(self._around[-MOST_BETWEEN:]) is not None
        self._depth += 1

    def _close(self) -> bytes | None:
        """The line of a request that ends here."""
        self._depth -= 1
        if not self._in_request or self._depth > IN_LIST:
            return None
        request, self._begin, self._in_request = self._data[self._begin : self._at], self._at, False
        return self._line(request)

    def _pass(self, end: int) -> None:
        """What stands before is around requests."""
        self._around += self._data[self._begin : end]
        self._begin = end
        if len(self._around) > MOST_AROUND:
            raise ApiError(413, f"The body has more than {MOST_AROUND} bytes beside its requests.")

    def _line(self, request: bytes) -> bytes:
        place = f"requests[{self.total}]"
        if len(request) > self._longest:
            raise self._too_long()
        if self.total >= MOST_REQUESTS:
            raise bad_request(f"requests: a batch has at most {MOST_REQUESTS}.", "requests")
        found = decode(_Request, check_depth(request, place), place)
        name = f"{place}.custom_id"
        if not CUSTOM_ID.fullmatch(found.custom_id):
            raise bad_request(f"{name}: it is 1 to 64 letters, digits, hyphens and underscores.", name)
        if found.custom_id in self._names:
            text = f"{name}: {found.custom_id} is that of an earlier request; each is there once."
            raise bad_request(text, name)
        self._names.add(found.custom_id)
        made = {"custom_id": found.custom_id, "method": "POST", "url": self._url, "body": found.params}
        return msgspec.json.format(msgspec.json.encode(made), indent=-1) + b"\n"  # without line breaks of the client's

    def _too_long(self) -> ApiError:
        place = f"requests[{self.total}]"
        return ApiError(413, f"{place} is longer than the {self._longest} bytes of --max-body-bytes.", place)

    def finish(self) -> None:
        """All of it has come."""
        self._around += self._data  # of a request that has no end, if there is one
        around = decode(_Around, check_depth(bytes(self._around)))
        other = next((index for index, one in enumerate(around.requests) if one is not None), None)
        if other is not None:
            raise bad_request(f"requests[{other}]: each request is an object.", f"requests[{other}]")
        if len(around.requests) != self.total or not self.total:
            raise bad_request("requests must be a list of at least one request, and be there once.", "requests")
