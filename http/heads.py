"""A connection that a client does not hold for nothing: the head of a request comes within its time.

What has come of a next request while one is answered has no clock until more of it comes; then, too, aiohttp closes the
connection once it has been idle for as long as any other.
"""

from __future__ import annotations

import asyncio

import msgspec

from .errors import ApiError
from .server import Connection

HEAD_S = 20.0  # what a client gets to send a request's head, and a new one to begin


class TimedConnection(Connection):
    """408 for a head that is begun and does not end; a client that has said nothing is told nothing."""

    __slots__ = ("_begun", "_clock", "_heads")

    _clock: asyncio.TimerHandle | None
    _begun: bool
    _heads: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._clock, self._begun, self._heads = None, False, 0
        super().connection_made(transport)
        self._start_clock()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._request_count != self._heads:
            self._heads = self._request_count
            self._begun = False
            self._stop_clock()
        elif data and self._is_idle():
            self._begun = True
            if self._clock is None:
                self._start_clock()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        """No request is answered, nor is one there to be; before the first, nobody may wait for it yet."""
        waits = self._waiter is not None and not self._waiter.done()
        return not self._messages and (waits or not self._heads)

    def _start_clock(self) -> None:
        self._clock = self._loop.call_later(HEAD_S, self._late)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _late(self) -> None:
        self._clock = None
        if self._begun and self.transport is not None:
            self.transport.write(_answer())
        self.force_close()


def _answer() -> bytes:
    """By hand: there is no request yet that aiohttp would write it for."""
    body = msgspec.json.encode(ApiError(408, f"The request's head did not come within {HEAD_S:.0f} s.").body())
    head = "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json; charset=utf-8\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
