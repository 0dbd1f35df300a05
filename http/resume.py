"""What an answer needs to be gone on with by another process: the connection's record, as the app sees it.

The app says from which slots it streams and how far each choice has come; a connection that was taken over says what
its predecessor had said. Knows neither shared memory nor sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

ENDED = 1 << 63  # in a choice's state, beside the characters that were given out: its end was, too


@dataclass(frozen=True)
class Predecessor:
    """An answer that is not out: its slots, the characters given out of each choice, and whether its end was."""

    refs: list[int]
    seed: int
    created: int  # Unix seconds
    characters: list[int]
    ended: list[bool]
    begun: bool  # something of the answer was given out: it is a stream
    first: bool  # the events that stand before all text were given out
    closed: bool  # so was all but the end of the body


class Record(Protocol):
    """One connection's record."""

    predecessor: Predecessor | None

    def stream(self, refs: list[int], seed: int, created: int) -> None:
        """The answer comes from these slots."""

    def note(self, choice: int, state: int) -> None:
        """The next bytes that are written bring the choice to this state."""

    def note_end(self) -> None:
        """The next bytes that are written are the answer's last."""

    def go_on(self) -> None:
        """What was written so far, the predecessor has written; from here on it is new."""


def record_of(request: web.BaseRequest) -> Record | None:
    """The record of the request's connection, where it has one."""
    return getattr(request.protocol, "record", None)
