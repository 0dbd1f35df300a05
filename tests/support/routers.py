"""A router before replicas that tests play, all in one event loop."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from actorserve.actors.route.server import Router
from actorserve.actors.route.settings import MIB, RouteSettings

SETTINGS = RouteSettings(
    replicas=[],
    host="127.0.0.1",
    port=0,
    api_keys=[],
    admin_api_key="admin",
    replica_api_key=None,
    probe_interval=0.02,
    detection_limit=60.0,  # tests share their loop with it: only who freezes somebody wants less
    connect_timeout=5.0,
    retries=3,
    patience=30.0,
    breaker_errors=3,
    breaker_seconds=60.0,
    shutdown_timeout=20.0,
    max_body_bytes=MIB,
    max_held_bytes=4 * MIB,
    log_level="debug",
)
Answer = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]
ORIGIN = "00000000000000aa.6553f100.7.1"
STREAM: dict[str, Any] = {"stream": True}


class FakeReplica:
    """Answers as it is told to; `seen`: (method, path, headers, body) of all but probes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = 200
        self.load = b"{}"
        self.models = ["tiny"]
        self.seen: list[tuple[str, str, Any, bytes]] = []
        self.answer: Answer = self.named
        self.frozen: asyncio.Event | None = None
        self.runner: web.AppRunner | None = None
        self.address = ""

    async def start(self, port: int = 0, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self.runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, host, port, ssl_context=tls, reuse_port=True).start()
        self.address = f"{'https' if tls else 'http'}://{host}:{self.runner.addresses[0][1]}"

    async def no_more(self) -> None:
        """Nobody listens there any more. Whoever was accepted before is served: a server that is closed between the two
        would forget its connection, open, and a probe would wait for an answer as long as for a frozen one.
        """
        assert self.runner is not None
        sites: list[Any] = list(self.runner.sites)
        for one in (one for site in sites for one in site._server.sockets):
            asyncio.get_running_loop().remove_reader(one.fileno())
        await asyncio.sleep(0)
        for site in sites:
            await site.stop()

    async def stop(self) -> None:
        if self.runner is not None:
            await self.no_more()
            runner, self.runner = self.runner, None
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.frozen is not None:
            await self.frozen.wait()
        probes = {"/ready": {}, "/v1/models": {"data": [{"id": one} for one in self.models]}}
        if request.path == "/load":
            return web.Response(body=self.load)
        if request.method == "GET" and request.path in probes:
            return web.json_response(probes[request.path], status=self.ready)
        body = await request.read()
        self.seen.append((request.method, request.path_qs, request.headers, body))
        return await self.answer(request, body)

    async def named(self, request: web.Request, body: bytes) -> web.StreamResponse:
        return web.json_response({"by": self.name})


@contextmanager
def held(replica: FakeReplica) -> Iterator[int]:
    """Its port, which is nobody else's while it listens no more: any connection that begins may be given a free one."""
    port = int(replica.address.rpartition(":")[2])
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        owner.bind(("127.0.0.1", port))
        yield port


def status(code: int, **headers: str) -> Answer:
    """An answer with nothing but this."""

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response({"error": {"code": code}}, status=code, headers=named)

    return answer


async def breaks_off(request: web.Request, body: bytes) -> web.StreamResponse:
    """Before anything is said."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def stream(*pieces: bytes, breaks: bool = False, trail: bool = True, gate: asyncio.Event | None = None) -> Answer:
    """A stream of these; with `gate`, it waits for that behind the last."""

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Request-Id": "named"})
        if trail:
            response.headers["X-Actorserve-Origin"] = ORIGIN
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if gate is not None:
            await gate.wait()
        if breaks and request.transport is not None:
            request.transport.abort()
        return response

    return answer


def event(text: str, characters: int, tokens: int, *ids: int, ended: bool = False) -> bytes:
    """A piece of a stream."""
    state = f"{characters:x}-{tokens:x}{'x' * ended}"
    return f"data: {json.dumps(text)}\n\n:t 0 {state} {','.join(map(str, ids))}\n\n".encode()


END = b"data: [DONE]\n\n:t e\n\n"


def goes_on_from(*pieces: bytes, breaks: bool = True, gate: asyncio.Event | None = None) -> Answer:
    """These, as `stream` has them; goes on with the rest."""
    begun, rest = stream(*pieces, breaks=breaks, gate=gate), stream(event("two", 6, 2, 6), END)

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        return await (rest if request.path == "/go_on" else begun)(request, body)

    return answer


@dataclass
class Routed:
    """A running router, its replicas, and a client."""

    router: Router
    replicas: list[FakeReplica]
    session: aiohttp.ClientSession
    running: asyncio.Task[None]

    async def ask(self, path: str = "/v1/completions", **fields: Any) -> tuple[int, bytes]:
        async with self.session.post(path, json={"model": "tiny", "prompt": "x", **fields}) as response:
            return response.status, await response.read()

    async def until(self, condition: Callable[[], bool]) -> None:
        """The router's view of its replicas is by probes: nothing else tells when it has changed."""
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def routed(
    count: int = 2, replica_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[Routed]:
    """So many replicas, all seen by the router; by TLS with these, and with clients."""
    replicas = [FakeReplica(chr(ord("a") + index)) for index in range(count)]
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await replica.start(tls=replica_tls)
            stack.push_async_callback(replica.stop)
        settings = {**{name: getattr(SETTINGS, name) for name in SETTINGS.__dataclass_fields__}, **options}
        settings["replicas"] = [replica.address for replica in replicas]
        router = Router(RouteSettings(**settings))
        at: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(router.run(at.set_result))
        connector = aiohttp.TCPConnector(ssl=client_tls or True)
        session = aiohttp.ClientSession(await at, timeout=aiohttp.ClientTimeout(total=30), connector=connector)
        made = Routed(router, replicas, session, running)
        try:
            await made.until(lambda: all(one.is_up and one.models for one in router.fleet.replicas))
            yield made
        finally:
            await session.close()
            router.stop()
            router.stop()
            await running


def asked_of(routed: Routed) -> list[int]:
    """How many requests each replica has had."""
    return [len(replica.seen) for replica in routed.replicas]


def stuck(replica: FakeReplica, gate: asyncio.Event) -> Answer:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        await gate.wait()
        return await replica.named(request, body)

    return answer
