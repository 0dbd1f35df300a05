"""The supervisor's side of the hand-over: who is given which connection, and what happens when the kernel refuses."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from actorserve.actors.protocol.sockets.connection_handover import (
    HANDED_BYTES,
    NEW,
    NOT_TAKEN,
    RESERVED,
    RESUMED,
    CloseIdle,
    read_handed,
)
from actorserve.actors.supervisor.connections import newcomers
from actorserve.actors.supervisor.connections import pool as module
from actorserve.actors.supervisor.connections.admission import MOST_WAITING, RESERVE, Admission

from .server import MOST, NAMES, Server, Shim


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
