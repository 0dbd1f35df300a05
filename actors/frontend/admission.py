"""Requests that come at once are begun a few in each turn of the event loop, so that whoever asks how the server is
waits for a few of them and not for all.
"""

from __future__ import annotations

import asyncio
from collections import deque

from aiohttp import web
from aiohttp.typedefs import Handler

from actorserve.http.routes import PROBE_PATHS

EACH = 2  # begun in one turn; one takes about half a millisecond


class AdmissionQueue:
    """The line of those that wait to be begun. Where nobody waits, a request goes on at once."""

    def __init__(self, each: int = EACH) -> None:
        self._loop = asyncio.get_running_loop()
        self._each = self._left = each
        self._line: deque[asyncio.Future[None]] = deque()

    @web.middleware
    async def wait(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Questions of those that operate the server pass by."""
        if request.path not in PROBE_PATHS:
            await self.take()
        return await handler(request)

    async def take(self) -> None:
        """Wait until it is this request's turn."""
        if self._left == self._each:
            self._loop.call_soon(self._next)
        if self._left:
            self._left -= 1
            return
        place = self._loop.create_future()
        self._line.append(place)
        await place

    def _next(self) -> None:
        """A turn of the loop is over; those that have gone meanwhile take nobody's place."""
        self._left = self._each
        while self._line and self._left:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                self._left -= 1
        if self._left < self._each:
            self._loop.call_soon(self._next)
