"""Streams of what stands in shared memory, which is looked at again and again for whoever watches: until the client
goes, stops reading, or the server ends. A watcher that does not read is told less, and at the end cut off. Watching is
no request that a drain waits for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple

from aiohttp import web

from ..errors import overloaded


class WatchLimits(NamedTuple):
    """Of one frontend's streams of one kind."""

    period_s: float  # between two looks
    stall_s: float  # what a watcher gets to take something
    most: int  # watchers


class Watch:
    """All streams of one kind."""

    def __init__(self, headers: Mapping[str, str], full: str) -> None:
        """`full`: what one too many is told, behind how many there are."""
        self._headers, self._full = headers, full
        self._watchers = 0

    @cached_property
    def _over(self) -> asyncio.Future[None]:
        """The server ends: so does every stream."""
        return asyncio.get_running_loop().create_future()

    async def stream(
        self, request: web.Request, event: Callable[[float], bytes], limits: WatchLimits
    ) -> web.StreamResponse:
        """`event`: what there is to say at a moment, if anything; asked for once the client has taken all before."""
        if self._watchers >= limits.most:
            raise overloaded(f"{limits.most} {self._full}")
        self._watchers += 1
        try:
            return await self._stream(request, event, limits)
        finally:
            self._watchers -= 1

    async def _stream(
        self, request: web.Request, event: Callable[[float], bytes], limits: WatchLimits
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._headers)
        if request.version < (1, 1):
            response.force_close()
        await response.prepare(request)
        taken = time.monotonic()  # when the client had taken all that was said
        while (transport := request.transport) is not None and not self._over.done():
            now = time.monotonic()
            if not transport.get_write_buffer_size():
                taken = now
                if said := event(now):
                    await response.write(said)
            elif now - taken > limits.stall_s:
                transport.abort()
            await asyncio.wait([self._over], timeout=limits.period_s)
        return response

    async def end(self, app: web.Application) -> None:
        """The server ends."""
        if not self._over.done():
            self._over.set_result(None)
