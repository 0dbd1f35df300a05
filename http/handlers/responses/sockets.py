"""GET /v1/responses: a WebSocket for responses, and which there are."""

from __future__ import annotations

import logging

from aiohttp import web

from ...middleware.context import name_request
from ...transport.body import BodyBudget
from ...transport.resume import record_of
from ...transport.websocket import WebSocketChannel
from ..sockets import check_upgrade
from .api import ResponsesApi
from .socket import ResponseSocket
from .turns import Find

log = logging.getLogger("http")
PROTOCOLS = ("responses", "realtime")  # what browsers ask for beside their key


class ResponseSockets:
    """Of one frontend."""

    def __init__(self, responses: ResponsesApi, longest: int, unfinished: BodyBudget) -> None:
        """`longest`: bytes of a message; `unfinished`: what those take that have not come whole, with all bodies."""
        self._engine, self._settings = responses.engine, responses.settings
        self._find: Find = lambda _: responses
        self._longest, self._unfinished = longest, unfinished
        self._open: set[ResponseSocket] = set()
        self._drains = False

    def among(self, find: Find, longest: int) -> None:
        """A message says which of several models it is for."""
        self._find, self._longest = find, longest

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/responses."""
        check_upgrade(request, self._settings)
        name_request(request, None)
        channel = WebSocketChannel(request, self._longest, PROTOCOLS, self._unfinished)
        record = record_of(request)
        left = record.upgraded.left if record is not None and record.upgraded is not None else None
        socket = ResponseSocket(request, channel, self._settings, self._find, self._begun)
        await channel.open()
        self._open.add(socket)
        self._engine.count_response_sockets(1)
        try:
            if self._drains:
                socket.drain()
            await socket.run(left)
        finally:
            channel.release()
            self._open.discard(socket)
            self._engine.count_response_sockets(-1)
            log.info("%s", socket.summary(), extra={"fields": {"session_id": socket.session.id}})
        return channel.response

    def _begun(self) -> None:
        """One more response is being generated for one of them."""
        self._engine.count_response_sockets(begun=1)

    def drain(self) -> None:
        """Nothing is begun any more: each is closed when the response that it is told has ended."""
        self._drains = True
        for socket in list(self._open):
            socket.drain()
