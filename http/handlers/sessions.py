"""Sessions: opened and closed; completions go on with them (generate.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from aiohttp import web

from ..errors import ApiError, bad_request
from ..generation.fields.unsupported import read
from ..middleware.context import CLIENT
from ..openai.sessions import CloseSessionRequest, OpenSessionRequest, new_session_id
from ..sagemaker import NEW_SESSION, SESSION, SESSION_CLOSED, SESSION_OPENED, SESSION_S, SagemakerSessionRequest
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
        name = body.session_id or self._new_id()
        await self._generator.give_to(request, self._sessions.owner(name))
        self._sessions.open(body, name, request[CLIENT])
        return json_response(name)

    def _new_id(self) -> str:
        return new_session_id(self._generator.engine.index, self._sessions.owner)

    async def close(self, request: web.Request) -> web.Response:
        """POST /close_session."""
        body = read(CloseSessionRequest, await self._read_body(request))
        await self._generator.give_to(request, self._sessions.owner(body.session_id))
        self._sessions.close(body.session_id, request[CLIENT])
        return json_response({})

    async def invoke(self, request: web.Request, raw: bytes) -> web.Response:
        """`requestType` of SageMaker's /invocations."""
        if read(SagemakerSessionRequest, raw).request_type == NEW_SESSION:
            name, ends = self._new_id(), datetime.now(UTC) + timedelta(seconds=SESSION_S)
            self._sessions.open(OpenSessionRequest(capacity_of_str_len=0, timeout=SESSION_S), name, request[CLIENT])
            answer = json_response({"message": f"Session {name} created"})
            answer.headers[SESSION_OPENED] = f"{name}; Expires={ends:%Y-%m-%dT%H:%M:%SZ}"
            return answer
        if not (name := request.headers.get(SESSION, "")):
            raise ApiError(424, f"{SESSION}: invalid session_id: this header names the session to close.", SESSION)
        await self._generator.give_to(request, self._sessions.owner(name))
        try:
            self._sessions.close(name, request[CLIENT])
        except ApiError:
            raise bad_request(f"{SESSION}: session not found: {name!r:.80}, or it has expired.", SESSION) from None
        answer = json_response({"message": f"Session {name} closed"})
        answer.headers[SESSION_CLOSED] = name
        return answer
