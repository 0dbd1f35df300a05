"""What happens when the kernel refuses: no memory for messages, no descriptor left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import Any, ClassVar

import pytest

from actorserve.actors.protocol.sockets.relay_wire import HERE, NONE_LEFT
from actorserve.actors.supervisor.connections import acceptor, inner
from actorserve.actors.supervisor.connections import pool as module

from .server import NAMES, Server, Shim, watched


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


@pytest.mark.parametrize("codes", [[errno.EMFILE, errno.ENFILE], [errno.EPERM, errno.EPROTO, errno.ENETDOWN]])
async def test_no_connection_can_be_accepted(server: Server, monkeypatch: pytest.MonkeyPatch, codes: list[int]) -> None:
    """For want of a descriptor, or as the network or a firewall has it: who waits is taken later."""

    class Listener(socket.socket):
        refusals: ClassVar = [*codes]

        def accept(self) -> Any:
            if self.refusals:
                raise OSError(self.refusals.pop(), "none left")
            return super().accept()

    mistakes: list[object] = []  # with the first of which a supervisor ends
    asyncio.get_running_loop().set_exception_handler(lambda _, about: mistakes.append(about))
    monkeypatch.setattr(acceptor, "PAUSE_S", 0.0)
    server.connections.acceptor.open_if(False)
    listener = Listener(fileno=os.dup(server.listener.fileno()))
    server.connections.acceptor._listeners = [listener]
    server.connections.acceptor.open_if(True)
    await server.hold(2)
    assert not listener.refusals and server.take(0) == [(0, 0)] and not mistakes
    listener.close()


async def test_no_descriptor_is_left_for_a_channel(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frontend cannot be born then; what it is to be handed stays held."""

    def socketpair(*kind: Any) -> Any:
        raise OSError(errno.EMFILE, "none left")

    await server.hold(1)
    before = {*os.listdir("/proc/self/fd")}
    server.die(0)
    monkeypatch.setattr(module, "socket", Shim(socketpair=socketpair))
    with pytest.raises(OSError, match="none left"):
        server.connections.open_channel(NAMES[0])
    now = {*os.listdir("/proc/self/fd")}
    assert now <= before and len(now) <= len(before) - 2, "the collector may close some of other tests"
    monkeypatch.setattr(module, "socket", socket)
    server.channels[0] = server.born(0)
    assert server.take(0) == [(0, 1)]


@pytest.mark.parametrize("code", [errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM])
async def test_a_relay_asks_again_behind_what_the_kernel_has_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Its way is closed only if it has died."""
    refusals = [code]

    def send_fds(channel: socket.socket, *what: Any) -> int:
        if refusals:
            raise OSError(refusals.pop(), "no means")
        return socket.send_fds(channel, *what)

    monkeypatch.setattr(inner, "socket", Shim(send_fds=send_fds))
    with server.connections.acceptor.open_inside("relay") as theirs:
        theirs.setblocking(False)
        answers: list[bytes] = []

        def has_come() -> bool:
            with contextlib.suppress(BlockingIOError):
                said, fds, _, _ = socket.recv_fds(theirs, 8, 1)
                answers.append(said)
                server.handed += fds
            return bool(answers)

        for answer, held in ((NONE_LEFT, 0), (HERE, 1)):
            theirs.send(b"10.0.0.1")
            await server.until(has_come)
            assert answers == [answer] and server.connections.count == held
            answers.clear()
