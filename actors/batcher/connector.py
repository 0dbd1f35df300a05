"""aiohttp's way to this server's frontends: by connections that the supervisor makes, whatever the server listens to,
without TLS and beside what clients may have.
"""

from __future__ import annotations

from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from ..runtime.way import Way, WayClosed

REST_S = 2.0  # that a connection is kept for the next line
NAME = "batcher"  # whose connections they are, where addresses are counted


class InnerConnector(aiohttp.BaseConnector):
    """For one session; as aiohttp's own for a Unix socket, but for where the socket comes from."""

    def __init__(self, way: Way, limit: int) -> None:
        super().__init__(limit=limit, keepalive_timeout=REST_S)
        self._way = way

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> ResponseHandler:
        try:
            connection = await self._way.open(NAME)
        except WayClosed:
            raise aiohttp.ClientConnectionError("the server takes no more connections") from None
        connection.setblocking(False)
        _, made = await self._loop.create_connection(self._factory, sock=connection)
        return made
