"""What an answer needs to be gone on with by another process: the connection's record, as the app sees it.

The app says from which slots it streams and how far each choice has come; a connection that was taken over says what
its predecessor had said. Knows neither shared memory nor sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from ..generation.choice import CHARACTERS, ENDED

__all__ = ["ENDED", "ConnectionRecord", "Predecessor", "record_of"]


@dataclass(frozen=True)
class Predecessor:
    """An answer that is not out: its slots, and how much was given out of each choice (generation/choice.py)."""

    refs: list[int]
    seed: int
    created: int  # Unix seconds
    states: list[int]
    begun: bool  # something of the answer was given out: it is a stream
    first: bool  # the events that stand before all text were given out
    closed: bool  # so was all but the end of the body
    replayed: bool = False  # an earlier request was answered with it, too

    @property
    def characters(self) -> list[int]:
        """That were given out of each choice."""
        return [state & CHARACTERS for state in self.states]


@dataclass(frozen=True)
class LeftSession:
    """What a predecessor has left of a connection that is no HTTP any more."""

    state: bytes  # the handler's, as it was written down last
    start: int  # in what the client has sent: what follows is read again
    end: int  # behind the last message that the state knows of
    frames: bytes  # that belong to the state, and were not given out


class UpgradedRecord(Protocol):
    """The record of a connection that is no HTTP any more. Places are counts of bytes that the client has sent."""

    left: LeftSession | None

    def begin(self) -> int:
        """Where its messages begin."""

    def end_of_message(self) -> int:
        """To be called with each message that is taken: where it ends."""

    def start_of_message(self) -> int:
        """Where the last one begins."""

    def keep(self, state: bytes, frames: bytes, start: int, end: int) -> None:
        """Before `frames` are written: who goes on does so from here."""


class ConnectionRecord(Protocol):
    """One connection's record."""

    predecessor: Predecessor | None
    upgraded: UpgradedRecord | None  # where its request asks for that, and it is kept

    def interim(self, data: bytes) -> None:
        """Write an interim answer, which is no part of the answer that may be gone on with; one for each request."""

    def stream(self, refs: list[int], seed: int, created: int, replayed: bool = False) -> None:
        """The answer comes from these slots; `replayed`: as that to an earlier request did."""

    def note(self, choice: int, state: int) -> None:
        """The next bytes that are written bring the choice to this state."""

    def forget(self) -> None:
        """Nothing is streamed any more."""

    def note_end(self) -> None:
        """The next bytes that are written are the answer's last."""

    def go_on(self) -> None:
        """What was written so far, the predecessor has written; from here on it is new."""

    def move(self, frontend: int) -> bool:
        """Give this connection to another frontend, which reads the request again: the handler will be cancelled.

        False, and nothing happens, if its record is not kept (the connection's number is beyond the journal's, or the
        request does not fit) or something of the answer was written (an interim one is none). Only the handler of the
        request may call it; after True it should await, and not answer. The other may move it on: nobody counts that.
        Where no frontend has this index, the connection is reset.
        """


def record_of(request: web.BaseRequest) -> ConnectionRecord | None:
    """The record of the request's connection, where it has one."""
    return getattr(request.protocol, "record", None)
