"""Who in the server asks for connections: each has a way of its own, and its next life another."""

from __future__ import annotations

import contextlib
import socket

from actorserve.actors.protocol.sockets.relay_wire import HERE

from .server import Server


class Door:
    """One life's end of its way."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self.socket = server.connections.acceptor.open_inside(name)
        self.socket.setblocking(False)
        self.said: list[bytes] = []

    def look(self) -> list[bytes]:
        """What the supervisor has answered."""
        with contextlib.suppress(BlockingIOError):
            said, fds, _, _ = socket.recv_fds(self.socket, 8, 1)
            self._server.handed += fds
            self.said.append(said)
        return self.said


async def test_each_has_its_own_way_and_a_new_life_closes_the_old_one(server: Server) -> None:
    relay, batcher = (Door(server, name) for name in ("relay", "batcher"))
    for count, door in enumerate((relay, batcher), 1):
        door.socket.send(b"10.0.0.1")
        await server.until(door.look)
        assert door.said == [HERE] and server.connections.count == count
    successor = Door(server, "batcher")
    assert batcher.look() == [HERE, b""] and relay.look() == [HERE]  # its end, and no other's
    for door in (relay, batcher, successor):
        door.socket.close()
