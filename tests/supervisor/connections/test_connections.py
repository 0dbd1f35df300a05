"""The supervisor's side of the hand-over: who is given which connection, and what happens when the kernel refuses."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import pytest

from actorserve.actors.protocol.connection_handover import (
    HANDED_BYTES,
    NEW,
    NOT_TAKEN,
    RESERVED,
    RESUMED,
    CloseIdle,
    Handed,
    give_back,
    read_handed,
)
from actorserve.actors.supervisor.connections import newcomers
from actorserve.actors.supervisor.connections import pool as module
from actorserve.actors.supervisor.connections.admission import MOST_WAITING, RESERVE, Admission
from actorserve.actors.supervisor.connections.pool import Connections

NAMES = ("frontend-0", "frontend-1")
MOST = 6


class Server:
    """Connections with two frontends of which only the channels' ends are there."""

    def __init__(self, admission: Admission | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.connections = Connections([self.listener], NAMES, admission or Admission(MOST))
        self.channels = [self.born(index) for index in range(2)]
        self.clients: list[socket.socket] = []
        self.handed: list[int] = []  # descriptors

    def born(self, index: int) -> socket.socket:
        channel = self.connections.open_channel(NAMES[index])
        channel.setblocking(False)
        self.connections.up(NAMES[index])
        return channel

    def die(self, index: int) -> None:
        self.channels[index].close()
        self.connections.lost(NAMES[index])

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        client = socket.create_connection(self.listener.getsockname(), source_address=(address, 0))
        client.setblocking(False)
        self.clients.append(client)
        return client

    def take(self, index: int) -> list[tuple[int, int]]:
        """What lies in a frontend's channel: numbers, and whether a predecessor had them."""
        found: list[tuple[int, int]] = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.channels[index], HANDED_BYTES, 1)
            except BlockingIOError:
                return found
            assert len(fds) == 1
            self.handed += fds
            handed = read_handed(data)
            assert isinstance(handed, Handed)
            found.append(handed)

    def give(self, index: int, *pairs: tuple[int, int]) -> None:
        self.channels[index].send(give_back(pairs))

    def numbers(self) -> list[set[int]]:
        return [self.connections._channels[name].numbers for name in NAMES]

    def free(self) -> list[int]:
        return self.connections._admission.ordinary.free()

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not what():
                await asyncio.sleep(0)

    async def hold(self, count: int) -> None:
        """Clients come until there are so many."""
        for _ in range(count - self.connections.count):
            self.connect()
        await self.until(lambda: self.connections.count == count)

    def close(self) -> None:
        self.connections.close()
        for one in [*self.channels, *self.clients]:
            one.close()
        for fd in self.handed:
            os.close(fd)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    server.close()


async def test_each_goes_to_the_one_that_has_least(server: Server) -> None:
    await server.hold(4)
    assert server.take(0) == [(0, 0), (2, 0)] and server.take(1) == [(1, 0), (3, 0)]
    server.give(0, (0, 0), (2, 0))
    await server.until(lambda: server.connections.count == 2)
    assert server.numbers() == [set(), {1, 3}] and server.free() == [0, 2, 4, 5]


async def test_a_moved_connection_is_handed_over_as_a_predecessors(server: Server) -> None:
    await server.hold(2)
    server.take(0), server.take(1)
    server.give(0, (0, 2))
    await server.until(lambda: server.numbers() == [set(), {0, 1}])
    assert server.take(1) == [(0, 1)] and server.take(0) == []
    server.give(1, (0, 1), (1, 1))
    await server.until(lambda: server.numbers() == [{0, 1}, set()])
    assert server.take(0) == [(0, 1), (1, 1)]
    server.give(1, (0, 0), (1, 0))  # they are no longer its own
    server.give(0, (1, 0))
    await server.until(lambda: server.connections.count == 1)
    assert server.numbers() == [{0}, set()] and server.free() == [1, 2, 3, 4, 5]
    with pytest.raises(BlockingIOError):
        server.clients[0].recv(1)  # it is held


async def test_a_target_that_is_not_there_gets_it_when_it_is_born(server: Server) -> None:
    await server.hold(1)
    server.die(1)
    server.give(0, (0, 2))
    await server.until(lambda: server.numbers() == [set(), {0}])
    server.channels[1] = server.born(1)
    assert server.take(1) == [(0, 1)]


async def test_last_words_are_heard_and_what_was_moved_is_handed_over_once(server: Server) -> None:
    """Moved to the other, to itself, closed: said before it died, and read after it."""
    await server.hold(5)
    server.take(0), server.take(1)
    server.give(0, (0, 2), (2, 1), (4, 0))
    server.die(0)
    assert server.numbers() == [{2}, {0, 1, 3}] and server.take(1) == [(0, 1)]
    server.channels[0] = server.born(0)
    assert server.take(0) == [(2, 1)]
    await asyncio.sleep(0)
    assert server.take(0) == [] and server.free() == [4, 5]


async def test_nobody_is_moved_to_who_does_not_exist(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    await server.hold(1)
    server.take(0)
    os.close(server.handed.pop())  # the frontend has let go of it
    server.give(0, (0, 3))
    await server.until(lambda: not server.connections.count)
    with pytest.raises(ConnectionResetError):
        server.clients[0].recv(1)
    assert "frontend 2, which does not exist" in caplog.text and server.free() == list(range(MOST))


async def test_a_full_channel_keeps_the_order(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes while it is full waits its turn; a death empties it, and the successor is handed each once."""
    full: socket.socket | None = server.connections._channels[NAMES[0]].socket

    def send_fds(channel: socket.socket, *what: Any) -> int:
        if channel is full:
            raise BlockingIOError
        return socket.send_fds(channel, *what)

    monkeypatch.setattr(module, "socket", Shim(send_fds=send_fds))
    await server.hold(3)
    assert server.take(0) == [] and server.take(1) == [(1, 0)]
    server.give(1, (1, 1))
    await server.until(lambda: server.numbers() == [{0, 1, 2}, set()])
    full = None
    await server.until(lambda: not server.connections._channels[NAMES[0]].unsent)
    assert server.take(0) == [(0, 0), (2, 0), (1, 1)] and server.take(1) == []
    full = server.connections._channels[NAMES[1]].socket
    server.give(0, (0, 2))
    await server.until(lambda: 0 in server.numbers()[1])
    server.die(1)
    full = None
    server.channels[1] = server.born(1)
    assert server.take(1) == [(0, 1)]


class Shim:
    """The module `socket` with something else in places."""

    def __init__(self, **others: Any) -> None:
        vars(self).update(vars(socket), **others)


@pytest.mark.parametrize("code", [errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM])
async def test_the_kernel_has_no_means_for_a_while(server: Server, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """It is tried again after a pause, and not in a busy loop, however many come meanwhile."""
    tries = 0
    refused = True

    def send_fds(channel: socket.socket, *what: Any) -> int:
        nonlocal tries
        tries += 1
        if refused:
            raise OSError(code, "no means")
        return socket.send_fds(channel, *what)

    monkeypatch.setattr(module, "socket", Shim(send_fds=send_fds))
    monkeypatch.setattr(module, "PAUSE_S", 1e6)
    await server.hold(5)
    assert tries == 2  # one a channel
    refused = False
    server.give(0, (0, 2))
    await server.until(lambda: 0 in server.numbers()[1])
    for name in NAMES:
        channel = server.connections._channels[name]
        assert channel.again is not None
        channel.again.cancel()
        server.connections._send_again(channel)
    assert server.take(0) == [(0, 0), (2, 0), (4, 0)] and server.take(1) == [(1, 0), (3, 0), (0, 1)]


async def test_a_pause_ends_with_its_life(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def send_fds(channel: socket.socket, *what: Any) -> int:
        raise OSError(errno.ENOBUFS, "no means")

    monkeypatch.setattr(module, "socket", Shim(send_fds=send_fds))
    monkeypatch.setattr(module, "PAUSE_S", 1e6)
    await server.hold(1)
    again = server.connections._channels[NAMES[0]].again
    assert again is not None
    server.die(0)
    assert again.cancelled()
    monkeypatch.setattr(module, "socket", socket)
    server.channels[0] = server.born(0)
    assert server.take(0) == [(0, 1)]


async def test_a_dead_frontend_gets_nothing_and_costs_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its death and the moment in which the supervisor is told. Its channel had been full."""

    def send_fds(*what: Any) -> int:
        raise BlockingIOError

    channel = server.connections._channels[NAMES[0]].socket
    assert channel is not None
    monkeypatch.setattr(module, "socket", Shim(send_fds=send_fds))
    await server.hold(1)
    monkeypatch.setattr(module, "socket", socket)
    server.channels[0].close()
    await server.hold(3)
    await server.until(lambda: channel.fileno() not in watched(asyncio.get_running_loop()))
    server.connections.lost(NAMES[0])
    server.channels[0] = server.born(0)
    assert server.take(0) == [(0, 1), (2, 1)]


def watched(loop: asyncio.AbstractEventLoop) -> list[int]:
    return [key.fd for key in loop._selector.get_map().values()]  # type: ignore[attr-defined]


async def test_no_descriptor_is_left_to_accept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is taken when there is one."""

    class Listener(socket.socket):
        refusals: ClassVar = [errno.EMFILE, errno.ENFILE]

        def accept(self) -> Any:
            if self.refusals:
                raise OSError(self.refusals.pop(), "none left")
            return super().accept()

    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    server.connections._gate(open_=False)
    listener = Listener(fileno=os.dup(server.listener.fileno()))
    server.connections._listeners = [listener]
    server.connections._gate()
    await server.hold(2)
    assert not listener.refusals and server.take(0) == [(0, 0)]
    listener.close()


async def test_no_descriptor_is_left_for_a_channel(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frontend cannot be born then; what it is to be handed stays held."""

    def socketpair(*kind: Any) -> Any:
        raise OSError(errno.EMFILE, "none left")

    await server.hold(1)
    before = len(os.listdir("/proc/self/fd"))
    server.die(0)
    monkeypatch.setattr(module, "socket", Shim(socketpair=socketpair))
    with pytest.raises(OSError, match="none left"):
        server.connections.open_channel(NAMES[0])
    assert len(os.listdir("/proc/self/fd")) == before - 2
    monkeypatch.setattr(module, "socket", socket)
    server.channels[0] = server.born(0)
    assert server.take(0) == [(0, 1)]


def told(channel: socket.socket) -> tuple[int, list[int]]:
    """How many of which connections are to be closed if they are idle."""
    asked = read_handed(channel.recv(HANDED_BYTES))
    assert isinstance(asked, CloseIdle)
    return asked.most, list(asked.numbers)


async def refused(client: socket.socket) -> bool:
    """Is it told so, and its connection over?"""
    client.setblocking(True)
    client.settimeout(20)
    return (await asyncio.to_thread(client.recv, 1 << 16)).startswith(b"HTTP/1.1 503")


async def test_beyond_the_most_there_is_a_reserve_for_whoever_comes_last(server: Server) -> None:
    """Its oldest are ended for that; more than it holds at once are refused."""
    await server.hold(MOST)
    assert {flags for index in range(2) for _, flags in server.take(index)} == {NEW}
    await server.hold(MOST + RESERVE)
    reserved = sorted(server.take(0) + server.take(1))
    assert reserved == [(number, RESERVED) for number in range(MOST, MOST + RESERVE)]
    for _ in range(MOST_WAITING):
        server.connect()
    await server.until(lambda: len(server.connections._newcomers._waiting) == MOST_WAITING)
    server.connect()
    first = server.clients.pop(MOST + RESERVE)
    assert await refused(first) and server.connections.count == MOST + RESERVE
    first.close()
    for index, client in enumerate(server.clients[: MOST + RESERVE]):
        if index < MOST:
            with pytest.raises(BlockingIOError):
                client.recv(1)
        else:
            assert client.recv(1) == b""
    for index in range(2):  # their frontends see it
        server.give(index, *[(number, 0) for number in server.numbers()[index] if number >= MOST])
    await server.until(lambda: not server.connections._newcomers._waiting)
    assert sorted(server.take(0) + server.take(1)) == reserved
    server.die(0)
    server.channels[0] = server.born(0)
    assert all(flags == RESUMED | RESERVED for number, flags in server.take(0) if number >= MOST)


async def test_the_client_that_has_most_gives_up_idle_ones(server: Server) -> None:
    """They are asked for, those that have waited longest first, where they are; the newcomer is served as any."""
    await server.hold(MOST)
    server.take(0), server.take(1)
    server.connect("127.0.0.2")
    await server.until(lambda: len(server.connections._newcomers._waiting) == 1)
    assert told(server.channels[0]) == (1, [0, 2, 4]) and told(server.channels[1]) == (1, [1, 3, 5])
    server.give(1, (3, 0))
    await server.until(lambda: not server.connections._newcomers._waiting)
    assert server.take(0) == [] and server.take(1) == [(3, NEW)]
    server.connect("127.0.0.2")
    server.give(0, (0, 0), (2, 0), (4, 0))
    await server.until(lambda: server.connections.count == 4)


async def test_where_nobody_is_idle_the_reserve_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomers, "ROOM_S", 0.0)
    await server.hold(MOST)
    server.take(0), server.take(1)
    server.connect("127.0.0.2")
    await server.until(lambda: server.connections.count == MOST + 1)
    assert server.take(0) == [(MOST, RESERVED)]


async def test_newcomers_wait_while_no_frontend_is_up(server: Server) -> None:
    await server.hold(MOST + RESERVE)
    server.take(0), server.take(1)
    server.connect()
    await server.until(lambda: server.connections._newcomers._waiting)
    server.give(0, (0, 0))
    server.die(1)
    server.die(0)
    assert server.free() == [0] and server.connections._newcomers._waiting
    server.channels[1] = server.born(1)
    assert server.free() == [] and (0, NEW) in server.take(1)


async def test_a_client_may_have_no_more_than_its_share() -> None:
    server = Server(Admission(MOST, 2))
    try:
        for _ in range(3):
            server.connect()
        server.connect("127.0.0.2")
        await server.until(lambda: server.connections.count == 4)
        handed = server.take(0) + server.take(1)
        assert sorted(handed) == [(0, NEW), (1, NEW), (2, NEW), (MOST, RESERVED)]
    finally:
        server.close()


async def test_what_a_frontend_cannot_take_goes_to_another(server: Server) -> None:
    """As do those that come behind it, though it has fewer."""
    await server.hold(2)
    assert server.take(0) == [(0, NEW)] and server.take(1) == [(1, NEW)]
    server.give(0, (0, NOT_TAKEN | NEW))
    await server.until(lambda: server.numbers() == [set(), {0, 1}])
    assert server.take(1) == [(0, NEW)] and server.connections.count == 2
    await server.hold(4)
    assert server.take(0) == [] and server.take(1) == [(2, NEW), (3, NEW)]
    assert server.connections.in_want_s(NAMES[0]) > 0 and not server.connections.in_want_s(NAMES[1])


@pytest.mark.parametrize("flags", [NEW, RESUMED])
async def test_what_no_other_can_take_is_tried_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    """A new one where all others are in want or dead, and one that was gone on with in any case."""
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    if flags == NEW:
        server.die(1)
    await server.hold(1)
    server.take(0)
    for _ in range(3):
        server.give(0, (0, NOT_TAKEN | flags))
        await server.until(lambda: server.take(0) == [(0, flags)])
        assert server.numbers() == [{0}, set()]
    assert server.connections.count == 1 and server.connections.in_want_s(NAMES[0]) > 0


async def test_a_want_ends_with_its_life(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had given back is handed to its successor, once."""
    monkeypatch.setattr(module, "PAUSE_S", 1e6)
    await server.hold(1)
    server.take(0)
    server.give(0, (0, NOT_TAKEN | RESUMED))
    await server.until(lambda: server.connections.in_want_s(NAMES[0]) > 0)
    server.die(0)
    server.channels[0] = server.born(0)
    assert server.take(0) == [(0, RESUMED)] and not server.connections.in_want_s(NAMES[0])
