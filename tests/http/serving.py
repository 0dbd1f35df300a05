"""The app on a real socket, before an engine that tests play; and a client that sees every byte."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from actorserve.actors.accounts.account import Account
from actorserve.actors.protocol.messages import Delta, Finish, Measured, Prompt
from actorserve.http.app import make_app
from actorserve.http.dashboard.figures import PageEngine, PageFigures
from actorserve.http.generation.idempotency_keys import Kept, Key
from actorserve.http.generation.job import Job
from actorserve.http.generation.times import JobTimes
from actorserve.http.settings import Settings
from actorserve.http.transport.connection import LONGEST_LINE, Connection, below

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
PATIENCE_S = 10.0  # what a server that is in order never needs


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


class FakeAdministration:
    """What an operator has asked for."""

    def __init__(self) -> None:
        self.sleeps: list[tuple[int, str, bool, int]] = []
        self.woken: list[list[str]] = []
        self.profiled = 0.0
        self.updates: list[tuple[str, str, int]] = []

    async def sleep(self, level: int, mode: str, refuses: bool, wait_s: int) -> None:
        self.sleeps.append((level, mode, refuses, wait_s))

    async def wake_up(self, parts: list[str]) -> None:
        self.woken.append(parts)
        self.sleeps.clear()

    def is_sleeping(self) -> bool:
        return bool(self.sleeps)

    async def update_weights(self, path: str, mode: str, wait_s: int) -> None:
        self.updates.append((path, mode, wait_s))

    async def call_workers(
        self, method: str, args: list[Any], kwargs: dict[str, Any], timeout_s: float | None = None
    ) -> list[Any]:
        return [[method, args, kwargs, timeout_s]]

    async def start_profile(self, seconds: float) -> None:
        self.profiled = seconds

    async def stop_profile(self) -> dict[str, Any]:
        return {"path": "trace.json", "events": 1, "missing": {}, "cut": []}

    def server_info(self, config_format: str) -> dict[str, Any]:
        return {"config_format": config_format}


class FakeScaling:
    """Engines that a test says."""

    def __init__(self) -> None:
        self.most, self.count, self.under_way = 3, 1, False
        self.refusal: Exception | None = None

    def engines(self) -> int:
        return self.count

    async def is_scaling(self) -> bool:
        return self.under_way

    async def scale(self, engines: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.count = engines


class FakeEngine:
    """http.generation.job.Engine, where a test is all the other actors."""

    def __init__(self) -> None:
        self.jobs: asyncio.Queue[Job] = asyncio.Queue()
        self.released: asyncio.Queue[Job] = asyncio.Queue()
        self.running: list[Job] = []
        self.refusal: Exception | None = None
        self.missing: list[str] = []
        self.asked: list[Any] = []
        self.index, self.frontends = 0, 1
        self.payloads: dict[bytes, bytes] = {}
        self.pauses: list[tuple[str, bool]] = []
        self.administration = FakeAdministration()
        self.aborts: list[tuple[list[str], bool]] = []
        self.resets: list[bool] = []
        self.job_times = JobTimes()
        self.forgotten = 0
        self.scaling = FakeScaling()
        self.charged: list[tuple[str, int, int]] = []
        self.adapters_asked: list[tuple[str, str, bool]] = []
        self.kept_jobs: dict[bytes, tuple[Kept, Job]] = {}

    def submit(self, job: Job, refs: list[int] | None = None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.running.append(job)
        self.jobs.put_nowait(job)

    def turn(self, account: Account) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def charge_alone(self, account: Account, prompt: int, completion: int) -> None:
        self.charged.append((account.name, prompt, completion))

    def has(self, refs: list[int]) -> bool:
        return False

    def keep(self, key: Key, job: Job, seed: int, created: int) -> None:
        self.kept_jobs[key.name] = Kept(key.digest, job.refs, seed, created), job

    def kept(self, key: Key) -> Kept | None:
        return self.kept_jobs[key.name][0] if key.name in self.kept_jobs else None

    def abort(self, job: Job, key: Key) -> None:
        self.kept_jobs.pop(key.name, None)
        self.release(job)

    def put(self, key: bytes, payload: bytes) -> bool:
        self.payloads[key] = payload
        return True

    def get(self, key: bytes) -> bytes | None:
        return self.payloads.get(key)

    def kept_payloads(self) -> list[bytes]:
        return list(self.payloads.values())

    def release(self, job: Job) -> None:
        self.running.remove(job)
        self.released.put_nowait(job)

    def times(self, job: Job) -> JobTimes:
        return self.job_times

    async def want_adapter(self, name: str | None) -> None:
        return None

    async def load_adapter(self, name: str, path: str, in_place: bool) -> None:
        self.adapters_asked.append((name, path, in_place))
        if self.refusal is not None:
            raise self.refusal

    async def unload_adapter(self, name: str) -> None:
        self.adapters_asked.append((name, "", False))
        if self.refusal is not None:
            raise self.refusal

    async def tokenize(self, prompt: Prompt, token_strings: bool) -> tuple[list[int], list[str] | None]:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(prompt)
        return [1, 2], ["a", "b"] if token_strings else None

    async def measure(self, sound: bytes) -> Measured:
        return Measured(1, 1.0, [(0.0, 1.0)])

    async def detokenize(self, tokens: list[int], skip_special: bool = False) -> str:
        self.asked.append(tokens)
        return "text"

    async def reset_encoder_cache(self) -> None:
        self.forgotten += 1

    async def reset_mm_cache(self) -> None:
        self.forgotten += 1

    async def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.resets.append(reset_running_requests)

    async def pause(self, mode: str, clear_cache: bool) -> None:
        self.pauses.append((mode, clear_cache))

    async def resume(self) -> None:
        self.pauses.clear()

    def is_paused(self) -> bool:
        return bool(self.pauses)

    async def abort_requests(self, request_ids: list[str], every: bool) -> int:
        self.aborts.append((request_ids, every))
        return len(request_ids)

    def degraded(self) -> list[str]:
        return []

    def not_ready(self) -> list[str]:
        return self.missing

    def in_flight(self) -> int:
        return len(self.running)

    def load(self) -> int:
        return len(self.running)

    def metrics(self, accept: str = "") -> tuple[Iterable[bytes], str]:
        return [b"# HELP a b\n", b"a 1.0\n"], "text/plain; version=0.0.4; charset=utf-8"

    def page_figures(self) -> PageFigures:
        return PageFigures(time.monotonic(), [], [], PageEngine(0, 0, 0, 0, 0, 0, 0, 0, "", ""))


def say(job: Job, index: int, text: str, tokens: int = 1, finish: int = 0, **more: Any) -> None:
    """One delta after what the choice has, in a turn of its own."""
    job.delta(index, Delta(0, job.choices[index].characters, text, tokens, finish, **more), cached_tokens=2)
    job.flush()


def rendered(job: Job, tokens: int = 5) -> None:
    for choice in job.choices:
        job.rendered(choice.index, tokens)


def finish_all(job: Job, text: str = "yes") -> None:
    """The whole of a job at once."""
    rendered(job)
    for choice in job.choices:
        say(job, choice.index, f"{text}{choice.index}", 3, Finish.STOP)


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
    served = Served(engine, listener.getsockname()[1])
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
