"""Requests that are sent again: by their key they find the answer that is being made, or was made a short time ago.

The key is the Idempotency-Key header, or X-Request-Id where the operator takes that for one. All requests of a key are
handled by one frontend, so that no two begin at once. Events of a keyed stream have ids, which say how far each choice
has come: by `Last-Event-ID` the stream goes on behind that event.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ..errors import ApiError, bad_request
from .choice import ENDED, further, make_state, read_state
from .idempotency_keys import KEY_BYTES, Kept, Key, Records, StartRecord

MAX_KEY = 255  # characters
CLOSED = "u"  # all choices have ended, and the usage event was given out
STATE = re.compile(r"([0-9a-f]{1,8})-([0-9a-f]{1,7})(x?)")


def key_of(
    headers: Mapping[str, str], place: tuple[str, str], body: bytes, frontends: int, by_request_id: bool
) -> Key | None:
    """The request's key; None if it has none. Keys of different clients (API keys) and paths are different.

    `place`: the client and the path. Where the server asks for no key, somebody before it may: clients differ by all
    that they send to be known by.
    """
    given = headers.get("Idempotency-Key", "")
    if not given and by_request_id:
        given = headers.get("X-Request-Id", "")
    if not given:
        if "Last-Event-ID" in headers:
            raise bad_request("Last-Event-ID goes with the Idempotency-Key of the stream.", "Idempotency-Key")
        return None
    if len(given) > MAX_KEY:
        raise bad_request(f"Idempotency-Key takes at most {MAX_KEY} characters.", "Idempotency-Key")
    sent = [headers.get(name, "") for name in ("Authorization", "X-Api-Key")]
    client, path = place
    scope = "\0".join((client or repr(sent), path, given)).encode(errors="surrogateescape")
    name = hashlib.sha256(scope).digest()[:KEY_BYTES]
    return Key(name, hashlib.sha256(body).digest()[:KEY_BYTES], int.from_bytes(name[:8], "little") % frontends)


def check_same(key: Key, kept: Kept | StartRecord) -> None:
    """422 for a key that was used for another request."""
    if kept.digest != key.digest:
        text = "This Idempotency-Key was used a short time ago for a request with another body."
        raise ApiError(422, text, "Idempotency-Key")


def begun_in_turns(key: Key, records: Records) -> StartRecord | None:
    """The response of several turns that a request with this key has begun, unless it is long over."""
    packed = records.get(key.name)
    try:
        found = msgspec.msgpack.decode(packed, type=StartRecord) if packed else None
    except msgspec.ValidationError:  # an answer of one turn
        return None
    return None if found is None or 0 < found.until <= time.monotonic() else found


@dataclass
class StreamProgress:
    """How far a stream has been given out: the state of each choice (choice.py), and what stands around them."""

    states: list[int]
    begun: bool = False  # what stands before all text was given out
    closed: bool = False  # so was what stands behind it
    on_wire: bool = False  # the answer's head was, on this connection
    resumed: bool = False  # it was on an earlier one, of which nobody between has seen anything

    @classmethod
    def none(cls, choices: int) -> StreamProgress:
        return cls([0] * choices)

    def at_least(self, other: StreamProgress) -> None:
        """Both were given out."""
        self.states = [further(*pair) for pair in zip(self.states, other.states, strict=True)]
        self.begun |= other.begun
        self.closed |= other.closed
        self.on_wire |= other.on_wire

    def reach(self, choice: int, state: int, ended: bool) -> None:
        """So much of a choice is given out."""
        self.states[choice] = state | (ENDED if ended else 0)

    def event_id(self) -> bytes:
        """The `id:` line of an event that brings the stream here."""
        return f"id: {'.'.join(map(_written, self.states))}{CLOSED if self.closed else ''}\n".encode()


def _written(state: int) -> str:
    characters, tokens, ended = read_state(state)
    return f"{characters:x}-{tokens:x}{'x' * ended}"


def last_event(headers: Mapping[str, str], choices: int) -> StreamProgress | None:
    """Behind which event the client wants the stream to go on; None for all of it."""
    given = headers.get("Last-Event-ID")
    if not given:
        return None
    parts = [STATE.fullmatch(part) for part in given.removesuffix(CLOSED).split(".")]
    found = [part for part in parts if part is not None]
    if len(found) != choices or len(parts) != len(found):
        raise bad_request("Last-Event-ID is not the id of an event of this stream.", "Last-Event-ID")
    states = [make_state(int(part[1], 16), int(part[2], 16), bool(part[3])) for part in found]
    return StreamProgress(states, True, given.endswith(CLOSED), resumed=True)
