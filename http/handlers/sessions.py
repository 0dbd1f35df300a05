"""Sessions: opened and closed; completions go on with them (generate.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from ..generation.fields.unsupported import read
from ..middleware.context import CLIENT
from ..openai.sessions import CloseSessionRequest, OpenSessionRequest, new_session_id
from ..transport.json_response import json_response
from .generate import Generator


class SessionsApi:
    """The handlers."""

    def __init__(self, generator: Generator, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        self._generator, self._sessions = generator, generator.sessions
        self._read_body = read_body

    async def open(self, request: web.Request) -> web.Response:
        """POST /open_session: its id."""
        body = read(OpenSessionRequest, await self._read_body(request))
        name = body.session_id or new_session_id(self._generator.engine.index, self._sessions.owner)
        await self._generator.give_to(request, self._sessions.owner(name))
        self._sessions.open(body, name, request[CLIENT])
        return json_response(name)

    async def close(self, request: web.Request) -> web.Response:
        """POST /close_session."""
        body = read(CloseSessionRequest, await self._read_body(request))
        await self._generator.give_to(request, self._sessions.owner(body.session_id))
        self._sessions.close(body.session_id, request[CLIENT])
        return json_response({})
