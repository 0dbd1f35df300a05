"""A connection that a client does not hold for nothing: the head of a request comes within its time and its length.

What has come of a next request while one is answered has no clock until more of it comes; then, too, aiohttp closes the
connection once it has been idle for as long as any other.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec

from ..errors import ApiError
from .connection import Connection

LONGEST_HEAD = 64 << 10  # bytes
HEAD_S = 20.0  # what a client gets to send a request's head, and a new one to begin


class TimedConnection(Connection):
    """408 for a head that is begun and does not end, 431 for one that is too long; a client that has said nothing is
    told nothing.
    """

    __slots__ = ("_begun", "_clock", "_heads", "_length")

    _clock: asyncio.TimerHandle | None
    _begun: bool
    _heads: int
    _length: int  # bytes of the head that is begun

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._clock, self._begun, self._heads, self._length = None, False, 0, 0
        super().connection_made(transport)
        self._start_clock(self._patience_s())

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._request_count != self._heads:
            self._heads = self._request_count
            self._begun, self._length = False, 0
            self._stop_clock()
        elif data and self._is_idle():
            self._begun = True
            self._length += len(data)
            self._start_clock(HEAD_S)
            if self._length > self._longest_head:
                self._refuse(ApiError(431, f"The request's head is longer than {self._longest_head} bytes."))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    @property
    def is_reading(self) -> bool:
        """A part of a request has come, and the rest has not."""
        request = self._current_request
        return self._begun or (request is not None and not request.content.is_eof())

    def _is_idle(self) -> bool:
        """No request is answered, nor is one there to be; before the first, nobody may wait for it yet."""
        waits = self._waiter is not None and not self._waiter.done()
        return not self._messages and (waits or not self._heads)

    @property
    def _longest_head(self) -> int:
        return LONGEST_HEAD

    def _patience_s(self) -> float:
        """How long the first request of which this process knows may take to begin."""
        return HEAD_S

    def _start_clock(self, seconds: float) -> None:
        """Or go on with the one that runs, if it ends before."""
        at = self._loop.time() + seconds
        if self._clock is None or self._clock.when() > at:
            self._stop_clock()
            self._clock = self._loop.call_at(at, self._late)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _late(self) -> None:
        self._clock = None
        if self._begun:
            self._refuse(ApiError(408, f"The request's head did not come within {HEAD_S:.0f} s."))
        else:
            self.force_close()

    def _refuse(self, error: ApiError) -> None:
        """By hand: there is no request yet that aiohttp would write it for."""
        if self.transport is not None:
            body = msgspec.json.encode(error.body())
            head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nConnection: close\r\n"
            kind = "Content-Type: application/json; charset=utf-8\r\n"
            self.transport.write(f"{head}{kind}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.force_close()
