"""Requests at which frontends have died: a successor reads them again, and must not die of the same one for ever.

What a request may kill by is its bytes, and what is made of them until it has slots, or an answer: of those that stand
there at a death, any may be the cause, but where somebody else has killed the process. Each is tried again alone, so
that the innocent are cleared whoever stands beside them; a death then is that one's alone, also where others have taken
longer than a trial and are under way. At its third it is given up: its client is answered 500, and nobody looks at its
bytes again. While one is tried, the board says so, and its deaths do not count towards the end of the server
(supervisor/recovery.py).

How many lives it has cost stands in its record (shm/journals/request_journal.py), written before it is read again.
Requests that came by TLS are in no record: their connections are reset, and end with the death.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

from actorserve.http.errors import ApiError
from actorserve.shm.board.board import BoardWriter
from actorserve.shm.journals.request_journal import RequestJournal

from ...runtime.in_flight import CALL, MOST_TRIES, Ended

TRIAL_S = 5.0  # for one that waits for something: the next is tried meanwhile
LONGEST = 200  # characters of a request's first line
WHY = "The request ended the process that read it, again and again, and is given up."
log = logging.getLogger("connections")


class Suspect(NamedTuple):
    """A request that was under way at a death."""

    number: int  # its connection's
    deaths: int  # that it was there at
    begin: Callable[[], None]  # read it again


class Suspects:
    """Those of one life."""

    def __init__(self, journal: RequestJournal, ended: Ended, status: BoardWriter | None) -> None:
        """`ended`: how the life before did."""
        self._journal, self._ended, self._status = journal, ended, status
        self._tried_then = 0  # what was tried alone at that death
        if status is not None:
            self._tried_then, _ = status.in_flight
            status.set_in_flight(0, 0)
        self._waiting: deque[Suspect] = deque()
        self._tried: int | None = None  # a connection's number
        self._patience: asyncio.TimerHandle | None = None

    @property
    def are_waiting(self) -> bool:
        """Is one to be read again later?"""
        return bool(self._waiting)

    def judge(self, number: int, begin: Callable[[], None]) -> bool:
        """Of a request without slots: it is read again, now or when others are cleared. False: it is given up."""
        is_blamed = self._ended in (Ended.DIED, Ended.HUNG) and self._tried_then in (0, _what(number))
        deaths = self._journal.deaths(number, is_blamed)
        hung = self._ended is Ended.HUNG and self._tried_then == _what(number)
        if deaths and (deaths >= MOST_TRIES or hung):
            if self._status is not None:
                self._status.give_up()
            return False
        if deaths:
            self._waiting.append(Suspect(number, deaths, begin))
            self._next()
        else:
            self._journal.take_up(number)
            begin()
        return True

    def settled(self, number: int) -> None:
        """It has slots or an answer, or its client has gone."""
        if number == self._tried:
            self._end()

    def _next(self) -> None:
        if self._tried is None and self._waiting:
            one = self._waiting.popleft()
            self._tried = one.number
            if self._status is not None:
                self._status.set_in_flight(_what(one.number), one.deaths + 1)
            self._patience = asyncio.get_running_loop().call_later(TRIAL_S, self._end)
            self._journal.take_up(one.number)
            one.begin()

    def _end(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._status is not None:
            self._status.set_in_flight(0, 0)
        self._tried = self._patience = None
        self._next()


class Refusal(asyncio.Protocol):
    """The answer to one that is given up."""

    def __init__(self, request: bytes, lost: Callable[[], None]) -> None:
        self._lost = lost
        line = request.partition(b"\r\n")[0][:LONGEST].decode(errors="replace")
        log.error("a request is given up, at which %d frontends have died: %r", MOST_TRIES, line)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        below = cast(asyncio.Transport, transport)
        body = json.dumps(ApiError(500, WHY, code="request_given_up").body()).encode()
        head = "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nConnection: close\r\n"
        below.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        below.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lost()


def _what(number: int) -> int:
    """As the board has it."""
    return CALL | number + 1
