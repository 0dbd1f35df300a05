"""Connections with two frontends of which only the channels' ends are there."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

from actorserve.actors.protocol.sockets.connection_handover import HANDED_BYTES, Handed, give_back, read_handed
from actorserve.actors.supervisor.connections.admission import Admission
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


class Shim:
    """The module `socket` with something else in places."""

    def __init__(self, **others: Any) -> None:
        vars(self).update(vars(socket), **others)


def watched(loop: asyncio.AbstractEventLoop) -> list[int]:
    return [key.fd for key in loop._selector.get_map().values()]  # type: ignore[attr-defined]
