"""A server that answers as it is told to, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

Behaviour = Callable[[web.StreamResponse, dict[str, Any]], Awaitable[None]]


def event(*, text: str | None = None, tokens: int | None = None) -> bytes:
    """A chunk of a completion; of the usage alone if there is no text."""
    chunk: dict[str, Any] = {"choices": [] if text is None else [{"index": 0, "text": text}]}
    if tokens is not None:
        chunk["usage"] = {"prompt_tokens": 7, "completion_tokens": tokens}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def well(response: web.StreamResponse, body: dict[str, Any]) -> None:
    """Two tokens in each chunk, counted where that is asked for."""
    continuous = body["stream_options"].get("continuous_usage_stats")
    total = body["max_tokens"]
    for sent in range(2, total + 1, 2):
        await response.write(event(text="ab", tokens=sent if continuous else None))
    await response.write(event(tokens=total))
    await response.write(b"data: [DONE]\n\n")


class Fake:
    """`with Fake() as server:`; `behave` says what an answer consists of, `refuse` the status in place of one."""

    def __init__(self, readiness: str = "/ready", tls: ssl.SSLContext | None = None) -> None:
        self._readiness = readiness
        self._tls = tls
        self.behave: Behaviour = well
        self.refuse: Callable[[int, dict[str, Any]], int | None] = lambda number, body: None
        self.wants: tuple[str, int] | None = None  # the header with the key, and the status of who has it not
        self.models: Any = {"data": [{"id": "fake"}]}
        self.unready = 0  # times that it says so
        self.asked_ready = self.asked_models = 0
        self.hang_up_after: int | None = None  # requests of a connection, without a word
        self.hung_up = 0
        self._requests: Counter[int] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(middlewares=[self._guard])
        app.router.add_get(self._readiness, self._ready)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls).start())
        self.base_url = f"{'https' if self._tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.wants is not None and request.headers.get("Authorization") != self.wants[0]:
            return web.Response(status=self.wants[1])
        return await handler(request)

    async def _ready(self, request: web.Request) -> web.Response:
        self.asked_ready += 1
        return web.Response(status=200 if self.asked_ready > self.unready else 503)

    async def _models(self, request: web.Request) -> web.Response:
        self.asked_models += 1
        return web.json_response(self.models)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert request.transport is not None
        connection = request.transport.get_extra_info("peername")[1]
        if self._requests[connection] == self.hang_up_after:
            self.hung_up += 1
            request.transport.abort()
            return web.Response()
        self._requests[connection] += 1
        self.bodies.append(body)
        if status := self.refuse(len(self.bodies), body):
            return web.json_response({"error": {"message": "not now"}}, status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self.behave(response, body)
        return response

    def __enter__(self) -> Fake:
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        assert not self._thread.is_alive()
