"""A WebSocket whose client takes what it is told slowly, or not at all, or says nothing."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import TestClient, TestServer

from actorserve.http.transport import websocket
from actorserve.http.transport.body import SHORT, BodyBudget
from actorserve.http.transport.websocket import WebSocketChannel, _Response
from tests.http.serving import PATIENCE_S


class Slow:
    """Stands for the transport of a client that takes `pace` bytes between two looks at it."""

    def __init__(self, protocol: BaseProtocol, size: int, pace: int) -> None:
        self.protocol, self.size, self.pace = protocol, size, pace
        self.looked_at = 0
        self.is_gone = False

    def get_write_buffer_size(self) -> int:
        self.looked_at += 1
        self.size -= self.pace
        if self.size <= 0 and self.protocol.writing_paused:
            self.protocol.resume_writing()
        return self.size

    def is_closing(self) -> bool:
        return self.is_gone

    def abort(self) -> None:
        self.is_gone = True
        self.protocol.connection_lost(ConnectionResetError())


def channel_of(monkeypatch: pytest.MonkeyPatch, pace: int) -> tuple[WebSocketChannel, Slow]:
    """One that is full."""
    monkeypatch.setattr(websocket, "STALL_S", 0.001)
    protocol = BaseProtocol(asyncio.get_running_loop())
    transport: Any = Slow(protocol, 100, pace)
    protocol.transport = transport
    request: Any = SimpleNamespace(protocol=protocol, transport=transport)
    channel = WebSocketChannel(request, 1000, (), BodyBudget(100))
    channel._transport = transport
    protocol.pause_writing()
    return channel, transport


async def test_a_slow_reader_is_waited_for_as_long_as_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both who tell it something and who read what it says."""
    channel, transport = channel_of(monkeypatch, pace=1)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(channel.drained(), channel.drained())
    assert transport.looked_at >= 100 and not channel.is_full and not channel.is_gone


async def test_one_who_waits_may_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, _ = channel_of(monkeypatch, pace=1)
    first, second = asyncio.ensure_future(channel.drained()), asyncio.ensure_future(channel.drained())
    await asyncio.wait([first], timeout=0)
    first.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await second
    assert first.cancelled() and not channel.is_full and not channel.is_gone


async def test_who_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, _ = channel_of(monkeypatch, pace=0)
    async with asyncio.timeout(PATIENCE_S):
        await channel.drained()
    assert channel.is_gone


@asynccontextmanager
async def connected(handler: Callable[[WebSocketChannel], Awaitable[None]]) -> AsyncIterator[ClientWebSocketResponse]:
    """A client that answers pings only while it receives."""

    async def handle(request: web.Request) -> web.StreamResponse:
        channel = WebSocketChannel(request, 1 << 20, (), BodyBudget(1 << 20))
        await channel.open()
        await handler(channel)
        return channel.response

    app = web.Application()
    app.router.add_get("/", handle)
    async with TestClient(TestServer(app)) as client, client.ws_connect("/", max_msg_size=1 << 25) as socket:
        yield socket


async def test_whom_nobody_has_listened_to_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pongs lie behind messages that wait."""
    monkeypatch.setattr(websocket, "PING_S", 0.02)
    missed, times = asyncio.Event(), 0
    look = _Response._pong_not_received

    def count(self: _Response) -> None:
        nonlocal times
        times += 1
        look(self)
        if times == 4:
            missed.set()

    monkeypatch.setattr(_Response, "_pong_not_received", count)
    many = 400

    async def listen_late(channel: WebSocketChannel) -> None:
        await missed.wait()
        for _ in range(many):
            assert await channel.receive(PATIENCE_S) == b"x" * 4096
        channel.write([b"all"])

    async with asyncio.timeout(PATIENCE_S), connected(listen_late) as socket:
        said = asyncio.ensure_future(socket.receive())
        for _ in range(many):
            await socket.send_str("x" * 4096)
        assert (await said).data == "all"


async def test_who_takes_what_stands_before_a_ping_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until nothing moves any more."""
    channel, transport = channel_of(monkeypatch, pace=1)
    request: Any = SimpleNamespace(protocol=channel._protocol, transport=transport)
    channel._protocol._reading_paused = False
    response, again = channel.response, list[int]()
    monkeypatch.setattr(response, "_req", request)
    monkeypatch.setattr(response, "_reset_heartbeat", lambda: again.append(transport.size))
    lost: list[BaseException] = []
    monkeypatch.setattr(response, "_handle_ping_pong_exception", lost.append)
    for _ in range(3):
        response._pong_not_received()
    assert again == [99, 98, 97] and not lost
    transport.pace = 0
    response._pong_not_received()
    assert len(again) == 3 and isinstance(lost[0], asyncio.TimeoutError)


class Clock:
    """Stands for the response of a channel, whose client says nothing: time passes only while that is waited for."""

    closed = False

    def __init__(self, channel: WebSocketChannel) -> None:
        self.channel, self.now = channel, 0.0
        self.speaks_at: list[float] = []

    def time(self) -> float:
        return self.now

    async def receive(self, timeout: float) -> None:
        end = self.now + timeout
        while self.speaks_at and self.speaks_at[0] <= end:
            self.now = self.speaks_at.pop(0)
            self.channel.write([b"{}"])
        self.now = end
        raise TimeoutError


async def test_nothing_comes_or_goes_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told counts; who is not closed then has the whole time again."""
    channel, transport = channel_of(monkeypatch, pace=0)
    transport.write = lambda _: None  # type: ignore[attr-defined]
    clock: Any = Clock(channel)
    channel.response = clock
    monkeypatch.setattr(websocket, "monotonic", clock.time)
    channel._lively_at = 0.0
    clock.speaks_at = [4.0, 9.5, 599.0]
    for end in (1199.0, 1799.0):
        with pytest.raises(TimeoutError):
            await channel.receive(600.0)
        assert clock.now == pytest.approx(end)


class Incoming:
    """Stands for what a frontend sees of a client's messages."""

    def watch(self, tell: Callable[[int], None]) -> None:
        self.tell = tell


class Followed(BaseProtocol):
    """A connection as a frontend has it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.incoming = Incoming()

    def message_ends(self) -> Incoming:
        return self.incoming


class Ending(Slow):
    """A transport that says what was written to it."""

    written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_gone = True


async def opened(monkeypatch: pytest.MonkeyPatch, budget: BodyBudget) -> tuple[WebSocketChannel, Incoming, Ending]:
    async def prepared(request: Any) -> None:
        return None

    protocol = Followed(asyncio.get_running_loop())
    transport = Ending(protocol, 0, 0)
    request: Any = SimpleNamespace(protocol=protocol, transport=transport)
    channel = WebSocketChannel(request, 1 << 20, (), budget)
    monkeypatch.setattr(channel.response, "prepare", prepared)
    await channel.open()
    return channel, protocol.incoming, transport


async def test_messages_that_do_not_come_whole_take_no_more_than_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all connections together; who is one too many is told why, and read no more."""
    budget = BodyBudget(100)
    budget.most = 8 * SHORT
    made = [await opened(monkeypatch, budget) for _ in range(3)]
    (first, of_first, _), (second, of_second, _), (third, of_third, last) = made
    of_first.tell(SHORT)
    assert not budget.held, "short ones are in nobody's way"
    for size in (SHORT + 1, 2 * SHORT, 2 * SHORT + 8):
        of_first.tell(size)
    of_second.tell(SHORT + 1)
    assert budget.held == 2 * (3 * SHORT + 9)
    of_third.tell(2 * SHORT)
    assert third.is_gone and last.written[:4] == struct.pack("!BBH", 0x88, len(last.written) - 2, 1013)
    of_first.tell(0)
    assert budget.held == 2 * (SHORT + 1) and not first.is_gone
    for one in (first, second, third):
        one.release()
        of_second.tell(5 * SHORT)
    assert not budget.held


async def test_a_long_message_gets_no_more_time_than_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not listened to has it still, and so has who has sent one and begins another."""
    monkeypatch.setattr(websocket, "BODY_S", 0.0)
    budget = BodyBudget(1 << 20)
    first, second, third, fourth = [await opened(monkeypatch, budget) for _ in range(4)]

    async def time_passes() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    first[1].tell(SHORT + 1)
    second[1].tell(SHORT)
    third[1].tell(SHORT + 1)
    third[1].tell(0)
    fourth[0]._protocol._reading_paused = True
    fourth[1].tell(SHORT + 1)
    await time_passes()
    assert [one[0].is_gone for one in (first, second, third, fourth)] == [True, False, False, False]
    assert struct.unpack("!BBH", first[2].written[:4])[2] == 1008 and b"within 0 s" in first[2].written
    fourth[0]._protocol._reading_paused = False
    await time_passes()
    assert fourth[0].is_gone
    for channel, *_ in (first, second, third, fourth):
        channel.release()
    assert not budget.held
