"""Newcomers for whom there is no room: they wait for a moment, while some is made, and are refused if there is none.

Who gets what stands in admission.py; what is done with connections, in pool.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from .admission import MOST_WAITING, Admission
from .descriptors import PAUSE_S

ROOM_S = 0.5  # that those with idle connections get to give one up
REFUSED_S = 5.0  # after which a newcomer is told that there is no room
NEVER = float("-inf")

_BODY = json.dumps(
    {
        "error": {
            "message": "The server has as many connections as it takes. Try again soon.",
            "type": "service_unavailable_error",
            "param": None,
            "code": None,
        }
    }
).encode()
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


@dataclass(eq=False)
class Newcomer:
    """Accepted when there was no room."""

    connection: socket.socket
    client: str
    came: float


class Holder(Protocol):
    """Who has the connections."""

    @property
    def accepting(self) -> bool:
        """Some frontend takes connections."""

    def hold(self, number: int, connection: socket.socket) -> None:
        """Have it, and hand it over."""

    def ask_for_idle(self, client: str, count: int) -> None:
        """Let so many of a client's idle connections be closed."""

    def end(self, number: int) -> None:
        """Break it off."""


class Newcomers:
    """Those that were accepted last."""

    def __init__(self, admission: Admission, holder: Holder) -> None:
        self._admission = admission
        self._holder = holder
        self._waiting: list[Newcomer] = []
        self._settling: asyncio.TimerHandle | None = None  # another look at those that wait
        self._asked_at = NEVER  # for idle connections
        self.ended: set[int] = set()  # of the reserve, which their frontends have not closed yet

    def come(self, connection: socket.socket, client: str) -> None:
        """Hand it over, now or as soon as there is room."""
        number = self._admission.take(client)
        if number is not None:
            self._holder.hold(number, connection)
            return
        if len(self._waiting) >= MOST_WAITING:
            self._refuse_one()
        self._waiting.append(Newcomer(connection, client, asyncio.get_running_loop().time()))
        self.settle()

    def _refuse_one(self) -> None:
        """Of the client that has most in line, the one that came first: a flood pushes out itself, and not who asks."""
        ((client, _),) = Counter(newcomer.client for newcomer in self._waiting).most_common(1)
        first = next(newcomer for newcomer in self._waiting if newcomer.client == client)
        self._waiting.remove(first)
        _refuse(first.connection)

    def settle(self) -> None:
        """Whoever waits gets what there is; who has least comes first. Room is made for those that get nothing.

        To be called when a number is free, and when frontends take connections again.
        """
        if not self._waiting or not self._holder.accepting:
            return
        now, yielding, in_vain = asyncio.get_running_loop().time(), list[str](), 0
        for newcomer in sorted(self._waiting, key=lambda one: self._admission.ordinary.counts[one.client]):
            number, victim = self._admission.take(newcomer.client), None
            if number is None:
                victim = self._admission.who_yields(newcomer.client) if now - newcomer.came < ROOM_S else None
                number = None if victim else self._admission.reserve.take(newcomer.client)
            if number is not None:
                self._waiting.remove(newcomer)
                self._holder.hold(number, newcomer.connection)
            elif victim is not None:
                yielding.append(victim)
            elif now - newcomer.came < REFUSED_S:
                in_vain += 1
            else:
                self._waiting.remove(newcomer)
                _refuse(newcomer.connection)
        if yielding and now - self._asked_at >= PAUSE_S:
            self._asked_at = now
            self._holder.ask_for_idle(yielding[0], len(yielding))
        self._end_oldest(in_vain - len(self.ended))
        if self._waiting and self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(PAUSE_S, self._settle_again)

    def _settle_again(self) -> None:
        self._settling = None
        self.settle()

    def _end_oldest(self, count: int) -> None:
        """End so many of the reserve."""
        reserve = self._admission.reserve
        for _ in range(count):
            left = [number for number in reserve.of(reserve.largest()[0]) if number not in self.ended]
            if not left:
                return
            self.ended.add(left[0])
            self._holder.end(left[0])

    def close(self) -> None:
        """Nobody gets anything any more."""
        if self._settling is not None:
            self._settling.cancel()
        for newcomer in self._waiting:
            _refuse(newcomer.connection)
        self._waiting.clear()


def _refuse(connection: socket.socket) -> None:
    """503, as far as it goes without waiting."""
    with contextlib.suppress(OSError), connection:  # the client may have gone
        connection.send(REFUSAL)
        connection.shutdown(socket.SHUT_WR)
