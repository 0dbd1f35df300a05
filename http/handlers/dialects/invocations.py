"""POST /invocations, as SageMaker calls every container: what is asked for is told by the fields of the body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from ...errors import bad_request
from ...generation.fields.decoding import decode
from ...middleware.context import BODY
from ...openai.schemas import InvocationRequest

if TYPE_CHECKING:
    from ..api import Api

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Invocations:
    """Hands a request on to the handler that its body is for."""

    def __init__(self, api: Api, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        generating = {"messages": api.chat, "prompt": api.completions, "token_ids": api.generate}
        pooling: dict[str, Handler] = {
            "task": api.pooling.pool,
            "documents": api.pooling.rerank,
            "text_1": api.pooling.score,
            "queries": api.pooling.score,
            "input": api.pooling.embeddings,
            "messages": api.pooling.embeddings,
        }
        self._handlers: dict[str, Handler] = pooling if api.settings.pooling is not None else {**generating}
        self._read_body = read_body

    async def invoke(self, request: web.Request) -> web.StreamResponse:
        raw = request[BODY] = await self._read_body(request)
        body = decode(InvocationRequest, raw)
        for field, handler in self._handlers.items():
            if getattr(body, field) is not None:
                return await handler(request)
        names = ", ".join(self._handlers)
        raise bad_request(f"What is asked for is told by one of the fields {names}, and none is there.", "messages")
