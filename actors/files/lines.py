"""A line of a batch's input and one of its answers, in OpenAI's form; and when one without an answer is asked again."""

from __future__ import annotations

import hashlib
import random
import uuid
from typing import Any

import msgspec

from ..protocol.wire import UNREADABLE

BUSY = frozenset({408, 429, 500, 502, 503, 504})  # whoever is asked cannot just now
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0
OK = 200
MOST_DOUBLINGS = 7  # from the first pause to the longest; of many more there is no float


class Request(msgspec.Struct, kw_only=True):
    """A line of the input."""

    custom_id: str
    url: str
    body: dict[str, msgspec.Raw]
    method: str = "POST"

    @property
    def wants_stream(self) -> bool:
        return bytes(self.body.get("stream", b"")) == b"true"


decode_request = msgspec.json.Decoder(Request).decode


class _Named(msgspec.Struct):
    custom_id: str


class _Response(msgspec.Struct):
    status_code: int = 0


class _Line(_Named):
    response: _Response | None = None


class _Error(msgspec.Struct):
    code: str


class Answered(_Named):
    """What is looked at of a line of a batch's answers, whether OpenAI's or Anthropic's."""

    error: _Error | None = None
    result: _Result | None = None

    @property
    def why_unasked(self) -> str:
        """What kept it from being asked, in words of a batch's state; empty if it was."""
        return UNASKED.get(self.error.code if self.error else self.result.type if self.result else "", "")


class _Result(msgspec.Struct):
    type: str


UNASKED = {"batch_expired": "expired", "batch_cancelled": "cancelled", "expired": "expired", "canceled": "cancelled"}
decode_answer = msgspec.json.Decoder(Answered).decode
_decode_line = msgspec.json.Decoder(_Line).decode


def digest_of(custom_id: str) -> bytes:
    """By which lines are told apart where all of a batch's are held: names may be long, and a million of them."""
    return hashlib.blake2b(custom_id.encode(errors="surrogatepass"), digest_size=16).digest()


def answered(line: bytes) -> tuple[str, bool]:
    """(the custom_id of a line of answers, whether it is an error). One of UNREADABLE if it is none."""
    found = _decode_line(line)
    return found.custom_id, found.response is None or found.response.status_code != OK


def answer_line(custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> dict[str, Any]:
    """An answer."""
    return {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": error}


def response_of(status: int, request_id: str, said: bytes) -> dict[str, Any]:
    """What the server has answered, for such a line."""
    body: Any
    try:
        body = msgspec.json.decode(said)
    except UNREADABLE:  # of a proxy, say
        body = said.decode(errors="replace")
    return {"status_code": status, "request_id": as_text(request_id), "body": body}


def as_text(said: str) -> str:
    """What a stranger says, in whose headers may be bytes that are no text, which no line can have."""
    return said.encode(errors="replace").decode()


def pause_s(retry_after: str, tries: int) -> float:
    """Seconds until the next try: as the server says, or twice as long each time; not all at the same moment."""
    if retry_after.isdecimal():
        return min(float(retry_after), LONGEST_PAUSE_S) + random.random() * FIRST_PAUSE_S
    pause = FIRST_PAUSE_S * (1 << min(tries, MOST_DOUBLINGS))
    return min(pause, LONGEST_PAUSE_S) * (0.5 + random.random())
