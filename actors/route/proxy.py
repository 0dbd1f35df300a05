"""One client's request: whom it is sent to, and whom next.

Before anything of an answer is out it is sent again: when the replica cannot be reached, breaks off, is lost, or
answers 502, 503 or 504. An answer that is not streamed is held until it is whole. A stream of the API's own goes on at
its next token elsewhere (streams.py), one of what a sound says is asked for again (transcript.py); any other stream
breaks off with its replica. No request is tried more often in a
row than --retries says without anything new of its answer, so that one of which servers die does not take all of them.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from uuid import uuid4

import aiohttp
from aiohttp import web

from .errors import RouteError, check_key, no_descriptors, nobody, reading_body
from .fleet import Fleet
from .metrics import RouterMetrics
from .replica import Replica, ReplicaLost
from .request import RoutedRequest, is_json, understand
from .settings import RouteSettings
from .streams import ClientGone, ClientStream, Streams, reason_of
from .trails.trail import ORIGIN, Passed, Trail, TrailError
from .trails.transcript import PATHS as HEARD
from .trails.transcript import Transcript
from .upstream import GATEWAY, Failed, NotNow, Upstream, Whole, read_whole, sent_headers

STREAMS = ("text/event-stream", "application/x-ndjson", "audio/", "video/")
LAST_EVENT = "Last-Event-ID"  # behind which a client goes on with a stream
KNOWN_BY_ONE = (  # what is kept is at the replica that made it
    *("/v1/responses/", "/responses/"),
    *("/v1/conversations/", "/conversations/"),
)
NOT_HERE = b'"previous_response_not_found"'  # what a replica says that does not keep it
log = logging.getLogger("route")


class HeldBytes:
    """Bytes that are held for a second try, of all requests together."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, size: int) -> None:
        if size > self._left:
            raise RouteError(503, "The router holds as much as it takes (--max-held-mib). Try again soon.")
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


@dataclass
class Passage:
    """What of a stream is out."""

    client: ClientStream | None = None
    trail: Passed | None = None
    request_id: str = ""


class Proxy:
    """Answers what is not the router's own."""

    def __init__(self, fleet: Fleet, settings: RouteSettings, upstream: Upstream, metrics: RouterMetrics) -> None:
        self._fleet, self._settings, self._upstream, self._metrics = fleet, settings, upstream, metrics
        self._streams = Streams(fleet, settings, upstream, metrics)
        self._held = HeldBytes(settings.max_held_bytes)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """A request of a client, up to the end of its answer."""
        body = await self._read(request)
        try:
            check_key(request.headers.get("Idempotency-Key", ""))
            json = is_json(request.headers.get("Content-Type", ""))
            headers = sent_headers(request.headers, request.remote, self._settings.replica_api_key)
            asked = understand(request.method, request.path_qs, headers, body, json)
            if request.path.startswith(KNOWN_BY_ONE) or asked.goes_on:
                return await self._find(request, asked)
            return await self._answer(request, asked)
        finally:
            self._held.give_back(len(body))

    async def _read(self, request: web.Request) -> bytes:
        """The body, which is held until the answer is out."""
        most, parts, size = self._settings.max_body_bytes, [], 0
        try:
            async with reading_body():
                async for part in request.content.iter_any():
                    size += len(part)
                    if size > most:
                        raise RouteError(413, f"The body has more than the {most} bytes of --max-body-mib.")
                    self._held.take(len(part))
                    parts.append(part)
        except BaseException:
            self._held.give_back(sum(map(len, parts)))
            raise
        return b"".join(parts)

    async def _answer(self, request: web.Request, asked: RoutedRequest) -> web.StreamResponse:
        since, avoid, last = time.monotonic(), list[Replica](), None
        passage = Passage()
        for attempt in range(self._settings.retries + 1):
            replica = await self._fleet.another(asked, avoid, since + self._settings.patience)
            if replica is None:
                break
            try:
                return await replica.run(self._ask(request, asked, replica, passage))
            except ClientGone:
                assert passage.client is not None
                return passage.client.response
            except NotNow:
                raise no_descriptors() from None
            except (Failed, ReplicaLost) as error:
                reason, answer = reason_of(error), error.answer if isinstance(error, Failed) else None
                since = time.monotonic()
                replica.fails()
            if passage.client is not None:
                return await self._rest(passage, asked, replica, reason)
            last = answer or last
            if attempt < self._settings.retries:
                self._metrics.retries.labels(reason).inc()
                log.warning("%s %s is sent again: %s (%s)", request.method, request.path, replica.address, reason)
            avoid.append(replica)
            if last is not None and not self._fleet.choose(asked, avoid):
                break  # all that could be asked have said what they have to say
        if last is not None:
            return web.Response(status=last.status, headers=last.headers, body=last.body)
        raise nobody()

    async def _ask(
        self, request: web.Request, asked: RoutedRequest, replica: Replica, passage: Passage
    ) -> web.StreamResponse:
        """The answer of one replica, passed on."""
        began = time.monotonic()
        async with self._upstream.ask(replica, asked) as head:
            self._metrics.heads.observe(time.monotonic() - began)
            if head.headers.get("Content-Type", "").startswith(STREAMS) and head.status == 200:
                return await self._stream(request, head, passage)
            whole = await self._whole(head)
        if whole.status in GATEWAY:
            raise Failed(f"status {whole.status}", whole)
        return web.Response(status=whole.status, headers=whole.headers, body=whole.body)

    async def _whole(self, head: aiohttp.ClientResponse) -> Whole:
        held = 0

        def hold(size: int) -> None:  # its length may stand nowhere before it
            nonlocal held
            self._held.take(max(0, size - held))
            held = max(held, size)

        try:
            hold(head.content_length or 0)
            return await read_whole(head, self._settings.max_held_bytes, hold)
        finally:
            self._held.give_back(held)

    async def _stream(self, request: web.Request, head: aiohttp.ClientResponse, passage: Passage) -> web.StreamResponse:
        if (origin := head.headers.get(ORIGIN)) is not None:
            try:
                passage.trail = Trail(origin, LAST_EVENT in request.headers)
            except TrailError as error:
                raise Failed(str(error)) from None
        elif request.path in HEARD:
            passage.trail = Transcript()
        passage.request_id = head.headers.get("X-Request-Id") or uuid4().hex
        client = passage.client = ClientStream(request, head)
        await client.begin()
        if passage.trail is None:
            await self._streams.copy(client, head)
        else:
            await self._streams.follow(client, head, passage.trail)
        await client.end()
        return client.response

    async def _rest(self, passage: Passage, asked: RoutedRequest, replica: Replica, reason: str) -> web.StreamResponse:
        """Of a stream that has broken off."""
        assert passage.client is not None
        try:
            if passage.trail is None:
                self._metrics.broken.inc()
                log.error("request %s breaks off: %s (%s)", passage.request_id, replica.address, reason)
                await passage.client.break_off()
                return passage.client.response
            await self._streams.go_on(passage.client, asked, passage.trail, passage.request_id, replica, reason)
        except ClientGone:
            log.debug("the client of request %s has gone", passage.request_id)
        return passage.client.response

    async def _find(self, request: web.Request, asked: RoutedRequest) -> web.StreamResponse:
        """What one replica keeps, or what goes on from that: all are asked, until one has it. That others have it not
        says nothing where one could not answer: it may be that one's.
        """
        missing: Whole | None = None
        failure: Whole | RouteError | None = None
        for replica in [one for one in self._fleet.replicas if one.is_up]:
            passage = Passage()
            try:
                answer = await replica.run(self._ask(request, asked, replica, passage))
            except NotNow:
                raise no_descriptors() from None
            except (Failed, ReplicaLost) as error:
                replica.fails()
                if passage.client is not None:  # the stream of a response that it keeps
                    return await self._rest(passage, asked, replica, reason_of(error))
                failure = failure or (error.answer if isinstance(error, Failed) else None) or nobody()
                continue
            except ClientGone:
                raise ConnectionResetError from None
            if not isinstance(answer, web.Response) or not isinstance(answer.body, bytes):
                return answer  # a stream
            if answer.status != 404 and not (answer.status == 400 and NOT_HERE in answer.body):
                return answer
            missing = Whole(answer.status, answer.headers, answer.body)
        told = failure or missing or nobody()
        if isinstance(told, RouteError):
            raise told
        return web.Response(status=told.status, headers=told.headers, body=told.body)
