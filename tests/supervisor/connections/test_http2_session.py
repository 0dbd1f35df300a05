"""Connections of HTTP/2 before a frontend that tests play: one answer, and it closes."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RemoteSettingsChanged, StreamEnded, StreamReset
from h2.settings import SettingCodes

from actorserve.actors.supervisor.connections.http2 import relay
from actorserve.actors.supervisor.connections.http2 import session as module
from actorserve.actors.supervisor.connections.http2.relay import RelayServer
from actorserve.actors.supervisor.connections.http2.session import Counts, Session

HEAD = [(":method", "GET"), (":scheme", "http"), (":authority", "any"), (":path", "/")]
TEXT = b"an answer"
WAIT_S = 20.0  # what comes at once in a session that is in order


class FakeWay:
    """To a frontend that answers each request once it may."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.may_answer = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, client: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._tasks.append(asyncio.ensure_future(self._answer(theirs)))
        return ours

    async def _answer(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        await reader.readuntil(b"\r\n\r\n")
        await self.may_answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(TEXT), TEXT))
        writer.close()


class Client:
    """Of a session that runs here. `window`: the room that it has for each answer."""

    def __init__(self, window: int = 65_535) -> None:
        self.way, self.counts = FakeWay(), Counts()
        self.http = H2Connection()
        self.http.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
        self.http.local_settings.acknowledge()
        self.http.initiate_connection()
        self._events: list[Event] = []

    async def connect(self) -> None:
        ours, theirs = socket.socketpair()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        ends = await asyncio.open_connection(sock=theirs)
        self.session = Session(self.way, "10.0.0.1", ends, (1 << 16, 64), self.counts)  # type: ignore[arg-type]
        self.running = asyncio.ensure_future(self.session.run(self.http.data_to_send()))

    def ask(self) -> int:
        number: int = self.http.get_next_available_stream_id()
        self.http.send_headers(number, HEAD, end_stream=True)
        self.flush()
        return number

    def flush(self, more: bytes = b"") -> None:
        self._writer.write(self.http.data_to_send() + more)

    async def until_closed(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while data := await self._reader.read(1 << 16):
                self._events += self.http.receive_data(data)

    async def until(self, kind: type[Event], stream: int | None = None) -> Any:
        """The event of this kind, and of this stream if one is named."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for event in self._events:
                    if type(event) is kind and stream in (None, getattr(event, "stream_id", None)):
                        return event
                data = await self._reader.read(1 << 16)
                assert data, f"it ended before {kind}"
                self._events += self.http.receive_data(data)
                self.flush()


@asynccontextmanager
async def connected(window: int = 65_535) -> AsyncIterator[Client]:
    made = Client(window)
    await made.connect()
    yield made
    made.running.cancel()
    await asyncio.gather(made.running, return_exceptions=True)


async def test_who_makes_no_room_for_an_answer_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And others of its streams go on."""
    async with connected(window=0) as client:
        monkeypatch.setattr(module, "STALL_S", 0.01)
        client.way.may_answer.set()
        assert (await client.until(StreamReset, client.ask())).error_code == ErrorCodes.CANCEL
        monkeypatch.undo()
        number = client.ask()
        client.http.increment_flow_control_window(1000, number)
        client.flush()
        assert (await client.until(DataReceived, number)).data == TEXT
        await client.until(StreamEnded, number)
        assert not client.counts.broken


@pytest.mark.parametrize("together", [False, True])
async def test_who_opens_no_more_streams_gets_those_that_are_open_to_their_end(together: bool) -> None:
    """With GOAWAY, in what is read with the request or behind it; one that comes later all the same is refused."""
    goodbye = b"\0\0\x08\x07" + bytes(1 + 4 + 4 + 4)
    async with connected() as client:
        if together:
            client.http.send_headers(1, HEAD, end_stream=True)
        else:
            client.ask()
            await client.until(RemoteSettingsChanged)
        client.flush(goodbye)
        async with asyncio.timeout(WAIT_S):
            while not client.session._frames.has_goodbye:
                await asyncio.sleep(0)
        late = client.ask()
        assert (await client.until(StreamReset, late)).error_code == ErrorCodes.REFUSED_STREAM
        client.way.may_answer.set()
        assert (await client.until(DataReceived, 1)).data == TEXT
        await client.until(StreamEnded, 1)
        await client.until_closed()
        await asyncio.wait_for(client.running, WAIT_S)
        assert client.counts == Counts(requests=1)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EPERM, errno.EPROTO, errno.ENETDOWN])
async def test_a_connection_that_cannot_be_accepted_is_not_the_last(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    class Listener(socket.socket):
        refusals: ClassVar = [code]

        def accept(self) -> Any:
            if self.refusals:
                raise OSError(self.refusals.pop(), "none now")
            return super().accept()

    came: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def come(connection: socket.socket, client: str) -> None:
        connection.close()
        came.set_result(client)

    monkeypatch.setattr(relay, "PAUSE_S", 0.0)
    server = object.__new__(RelayServer)
    vars(server).update(_clients=set(), _settings=SimpleNamespace(connections=1), _come=come)
    with Listener() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        accepting = asyncio.ensure_future(server._accept(listener))
        with socket.create_connection(listener.getsockname()):
            assert await asyncio.wait_for(came, WAIT_S) == "127.0.0.1" and not accepting.done()
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
