"""The app on a real socket, before an engine that tests play; and a client that sees every byte."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from actorserve.http.app import make_app
from actorserve.http.generation.job import Job
from actorserve.http.settings import Settings
from actorserve.http.transport.connection import Connection, below

from .fakes import FakeEngine

LONGEST_LINE = 32 << 10  # bytes, as by the default of --max-header-bytes
SETTINGS = Settings(
    served=["tiny", "alias/name"],
    api_keys=[],
    max_body_bytes=100_000,
    max_model_len=64,
    vocab_size=1000,
    end_tokens=[2],
    sampling_defaults={},
    created=1_700_000_000,
)
HI = [{"role": "user", "content": "hi"}]
SEND_BUFFER = 16 << 10
PATIENCE_S = 30.0  # what a server that is in order never needs


class Server(web.Server):
    """Makes a Connection for each that is accepted."""

    def __call__(self) -> web.RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """An AppRunner whose server is ours."""

    root = ""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return Server(
            made.request_handler,
            request_factory=below(self.root, made.request_factory) if self.root else made.request_factory,
            handler_cancellation=made.handler_cancellation,
            loop=made._loop,
            **made._kwargs,
        )


@dataclass
class Answer:
    """A response as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error that the body is."""
        assert self.headers["content-type"] == "application/json; charset=utf-8"
        (error,) = self.json.values()
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        assert error["code"] is None or isinstance(error["code"], str), "strict clients read no number"
        return dict(error)

    @property
    def events(self) -> list[Any]:
        """The events of a stream, which ends with [DONE]."""
        assert self.headers["content-type"].startswith("text/event-stream")
        return events_of(self.body)


def events_of(body: bytes) -> list[Any]:
    *events, done, nothing = body.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", ""), body[-200:]
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, method: str, path: str, body: Any = None, version: str = "1.1", **headers: str) -> None:
        """Write a request; `body` is bytes, or becomes JSON. A header's name has _ for -."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/{version}", "Host: here"]
        if body is not None and "Transfer_Encoding" not in headers:
            headers.setdefault("Content_Length", str(len(data)))
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.raw("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data)

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> Answer:
        """Status and headers, without the body."""
        async with asyncio.timeout(PATIENCE_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return Answer(int(lines[0].split()[1]), {name.lower(): value for name, value in headers.items()}, b"")

    async def answer(self, method: str = "POST") -> Answer:
        """A whole response; the framing of its body is checked."""
        answer = await self.head()
        if method == "HEAD" or answer.status < 200:
            return answer
        if answer.headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                answer.chunks.append(chunk)
            return replace(answer, body=b"".join(answer.chunks))
        if "content-length" in answer.headers:
            return replace(answer, body=await self.reader.readexactly(int(answer.headers["content-length"])))
        return replace(answer, body=await self.reader.read())

    async def chunk(self) -> bytes:
        """The next chunk; empty for the last."""
        async with asyncio.timeout(PATIENCE_S):
            size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
            data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def rest(self) -> bytes:
        """The body of a stream up to its end, whose head was read."""
        body = b""
        while chunk := await self.chunk():
            body += chunk
        return body

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        self.send(method, path, body, **headers)
        return await self.answer(method)

    def leave(self) -> None:
        """Go without a word."""
        self.writer.transport.abort()

    async def is_closed(self) -> bool:
        """Wait for the server's end of the connection; is nothing before it?"""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE_S) == b""
        except ConnectionResetError:
            return True


@dataclass
class Served:
    """A running server."""

    engine: FakeEngine
    port: int
    app: web.Application
    clients: list[Client] = field(default_factory=list)

    async def client(self, receive_buffer: int | None = None) -> Client:
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        self.clients.append(Client(*await asyncio.open_connection(sock=connection, limit=1 << 16)))
        return self.clients[-1]

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request on a connection of its own."""
        client = await self.client()
        answer = await client.ask(method, path, body, **headers)
        client.leave()
        return answer

    async def job(self) -> Job:
        return await asyncio.wait_for(self.engine.jobs.get(), PATIENCE_S)

    async def release(self) -> Job:
        """The next job that is let go."""
        return await asyncio.wait_for(self.engine.released.get(), PATIENCE_S)


@asynccontextmanager
async def serving(linger_s: float = 1.0, more: Sequence[Middleware] = (), **settings: Any) -> AsyncIterator[Served]:
    """The app as a frontend runs it; `linger_s`: how long it waits for the rest of a body that nobody wants."""
    engine = FakeEngine()
    runner = Runner(
        make_app(engine, replace(SETTINGS, **settings), more),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=65,
        lingering_time=linger_s,
        auto_decompress=False,
        shutdown_timeout=1,
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
    )
    runner.root = settings.get("root_path", "")
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    await web.SockSite(runner, listener).start()
    served = Served(engine, listener.getsockname()[1], runner.app)
    try:
        yield served
    finally:
        for client in served.clients:
            client.leave()
        await runner.cleanup()


def text_of(events: Iterable[Any], index: int = 0) -> str:
    """What a client puts together for one choice."""
    parts = [choice for event in events for choice in event.get("choices", ()) if choice["index"] == index]
    return "".join(part.get("text") or part.get("delta", {}).get("content") or "" for part in parts)
