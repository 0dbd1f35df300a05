"""Names that stand for many replicas (`dns+http://NAME:PORT`): looked up again and again, as Kubernetes' headless
services have to be. Each address is a replica from when it is there. One that is there no more is sent nothing new,
what runs there ends there or, if it is lost, goes on elsewhere, and it is forgotten then. A look-up that fails changes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from urllib.parse import urlsplit

from .fleet import Fleet

LOOK_S = 5.0
ANSWER_S = 5.0
PREFIX = "dns+"
log = logging.getLogger("route")


class Names:
    """Those of one router."""

    def __init__(self, fleet: Fleet, names: list[str]) -> None:
        self._fleet, self._names = fleet, names
        self._said: dict[str, str] = {}  # why a name is not known now

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.gather(*(self._look(name) for name in self._names))
            await asyncio.sleep(LOOK_S)

    async def _look(self, name: str) -> None:
        parts = urlsplit(name.removeprefix(PREFIX))
        assert parts.hostname is not None, "it is checked"
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await asyncio.get_running_loop().getaddrinfo(
                    parts.hostname, parts.port or 80, type=socket.SOCK_STREAM
                )
        except (OSError, TimeoutError) as error:
            why = str(error) or "nobody answers"
            if self._said.get(name) != why:
                log.warning("%s cannot be looked up: %s", name, why)
            self._said[name] = why
            return
        self._said.pop(name, None)
        places = sorted({(str(place[0]), int(place[1])) for _, _, _, _, place in found})
        addresses = [f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}" for host, port in places]
        came, went = self._fleet.name_has(name, [address + parts.path for address in addresses])
        for text, some in (("there is", came), ("there is no more", went)):
            for address in some:
                log.info("%s: %s %s", name, text, address)
