"""--http2-port as the supervisor has it: the sockets that are listened on, and who serves them (relay.py)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ....options.config import Config
from ....protocol.kinds import HTTP2
from ...listeners import host_and_port, hosts_of, listen
from ..relay import Relay

if TYPE_CHECKING:
    from ...supervisor import Supervisor


class Settings(msgspec.Struct, frozen=True):
    """What the relay is told by its command line."""

    parent: int  # the supervisor's process
    listeners: list[int]  # descriptors
    way: int  # by which it asks for connections
    connections: int  # of its clients at once
    header_bytes: int  # of a request's head
    header_count: int
    certificate: str | None
    key: str | None
    authorities: str | None


class Http2Port(Relay):
    """The port, and the relay that serves it."""

    name = HTTP2

    def __init__(self, config: Config, port: int) -> None:
        """ListenError if it cannot be listened on."""
        super().__init__()
        self._listeners = listen(config.host, port)
        self._config = config
        address = host_and_port(hosts_of(config.host)[0], self._listeners[0].getsockname()[1])
        self.place = f"{config.scheme}://{address}"
        self._way = -1

    def begin(self, address: tuple[str, int], supervisor: Supervisor) -> tuple[Sequence[str], list[int]]:
        config, fds = self._config, [listener.fileno() for listener in self._listeners]
        self._way = supervisor.connections.acceptor.open_inside(self.name).detach()
        told = Settings(
            os.getpid(),
            fds,
            self._way,
            config.max_connections,
            config.max_header_bytes,
            config.max_header_count,
            config.ssl_certfile,
            config.ssl_keyfile,
            config.ssl_ca_certs,
        )
        return [msgspec.json.encode(told).decode()], [*fds, self._way]

    def begun(self) -> None:
        """The relay has its end of the way, and nobody else is to have it: so its death is seen at the other one."""
        os.close(self._way)
        self._way = -1

    def ended(self, supervisor: Supervisor) -> None:
        if self._way >= 0:
            self.begun()

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        super().close()
