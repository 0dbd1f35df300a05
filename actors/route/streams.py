"""Streams on their way through: passed on as they come, and gone on with elsewhere when their replica is lost."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable

import aiohttp
from aiohttp import web

from .endings import Ending
from .fleet import Fleet
from .metrics import RouterMetrics
from .replica import Replica, ReplicaLost
from .request import RoutedRequest
from .settings import RouteSettings
from .trails.trail import Passed, TrailError
from .upstream import BUSY, GATEWAY, Failed, NotNow, Upstream, passed_headers, pause_of, read_whole

LOOK_S = 12.0  # a client that takes nothing between two looks is cut off, before a replica cuts off the router
MOST_ERROR = 1 << 20  # bytes of an error's body
log = logging.getLogger("route")


class ClientGone(Exception):
    """Nobody reads the answer."""


class ClientStream:
    """What the client gets."""

    def __init__(self, request: web.Request, head: aiohttp.ClientResponse) -> None:
        self._request = request
        self.response = web.StreamResponse(status=head.status, headers=passed_headers(head.headers))
        self.ending = Ending(request.path, head.headers.get("Content-Type", ""), "Content-Encoding" in head.headers)

    async def begin(self) -> None:
        if self._request.version >= (1, 1):
            self.response.enable_chunked_encoding()
        await self._patiently(self.response.prepare(self._request))

    async def write(self, data: bytes) -> None:
        self.ending.note(data)
        await self._patiently(self.response.write(data))

    async def end(self) -> None:
        await self._patiently(self.response.write_eof())

    async def break_off(self) -> None:
        """What the client has is not whole, and it is told so. ClientGone as `write`."""
        if said := self.ending.error():
            await self.write(said)
            await self.end()
        else:
            self._cut()

    def _cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _patiently(self, work: Awaitable[object]) -> None:
        """ClientGone where it is, or takes nothing; a slow reader is waited for."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(LOOK_S, lambda: look(sys.maxsize))

        def look(left: int) -> None:
            nonlocal timer
            if (unsent := self._unsent()) < left:
                timer = loop.call_later(LOOK_S, look, unsent)
            else:
                limit.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as limit:
                await work
        except TimeoutError:
            self._cut()
            raise ClientGone from None
        except (ConnectionError, aiohttp.ClientConnectionResetError):
            raise ClientGone from None
        finally:
            timer.cancel()

    def _unsent(self) -> int:
        transport = self._request.transport
        return transport.get_write_buffer_size() if transport is not None else 0


class Streams:
    """Copies streams."""

    def __init__(self, fleet: Fleet, settings: RouteSettings, upstream: Upstream, metrics: RouterMetrics) -> None:
        self._fleet, self._settings, self._upstream, self._metrics = fleet, settings, upstream, metrics

    async def copy(self, client: ClientStream, head: aiohttp.ClientResponse) -> None:
        """One that cannot go on elsewhere. Failed where it breaks off."""
        try:
            async for data in head.content.iter_any():
                if passed := client.ending.whole(data):
                    await client.write(passed)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Failed(type(error).__name__) from error
        if rest := client.ending.rest():
            await client.write(rest)
        await client.end()

    async def follow(self, client: ClientStream, head: aiohttp.ClientResponse, trail: Passed) -> None:
        """One that others can go on with, up to its end, which is the client's. Failed where it breaks off before."""
        try:
            async for data in head.content.iter_any():
                passed, pieces = trail.feed(data)
                if passed:
                    await client.write(passed)
                self._metrics.pieces += pieces
        except TrailError as error:
            if error.passed:  # of the same read: by its trail the client has it
                await client.write(error.passed)
            if not trail.closed:
                raise Failed(str(error)) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if not trail.closed:
                raise Failed(type(error).__name__) from error
        if not trail.closed:
            raise Failed("its end is missing")

    async def go_on(
        self, client: ClientStream, asked: RoutedRequest, trail: Passed, request_id: str, lost: Replica, reason: str
    ) -> None:
        """Elsewhere, up to the end."""
        left, avoid, cut_at = self._settings.retries, [lost], time.monotonic()
        rests: dict[Replica, float] = {}  # who has said when to be asked again
        while not trail.closed:
            trail.drop_rest()
            replica = await self._fleet.another(asked, avoid, cut_at + self._settings.patience, rests)
            if replica is None or left == 0 or trail.is_over:
                log.error("request %s breaks off: %s, and nobody goes on with it", request_id, reason)
                self._metrics.broken.inc()
                await client.break_off()
                return
            left, before = left - 1, trail.tokens
            self._metrics.moves.labels(reason).inc()
            log.warning("request %s goes on at %s: %s (%s)", request_id, replica.address, lost.address, reason)
            try:
                await replica.run(self._at(client, replica, asked, trail, request_id, cut_at))
            except NotNow as error:  # nothing was tried: what bounds this is the patience
                left, reason = left + 1, error.reason
                rests[replica] = time.monotonic() + error.seconds
            except (Failed, ReplicaLost) as error:
                lost, reason, cut_at = replica, reason_of(error), time.monotonic()
                lost.fails()
                if trail.tokens > before:  # it is not this request of which replicas die
                    left = self._settings.retries
                avoid = [lost]
        await client.end()

    async def _at(
        self,
        client: ClientStream,
        replica: Replica,
        asked: RoutedRequest,
        trail: Passed,
        request_id: str,
        cut_at: float,
    ) -> None:
        target, body = trail.ask(asked.path, asked.body, request_id)
        async with self._upstream.ask(replica, asked, target, body) as head:
            if head.status in BUSY:
                raise NotNow(f"status {head.status}", pause_of(head.headers))
            if head.status in GATEWAY or head.status == 500:
                raise Failed(f"status {head.status}")
            if head.status != 200 or not trail.is_gone_on_with(head.headers):
                whole = await read_whole(head, MOST_ERROR)
                log.error("%s does not go on: %d %r", replica.address, whole.status, whole.body[:500])
                raise Failed(f"status {whole.status}")
            self._metrics.gaps.observe(time.monotonic() - cut_at)
            await self.follow(client, head, trail)


def reason_of(error: Failed | ReplicaLost) -> str:
    """As a label and in logs: no text of a replica's."""
    reason = error.reason if isinstance(error, Failed) else "lost"
    return reason if len(reason) < 60 and reason.isascii() else "other"
