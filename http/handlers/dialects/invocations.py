"""POST /invocations, as SageMaker calls every container: what is asked for is told by the fields of the body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.protocol.request import CLASSIFY, EMBED

from ...errors import bad_request
from ...generation.fields.decoding import decode
from ...middleware.context import BODY
from ...openai.schemas import InvocationRequest
from ...sagemaker import ADAPTER

if TYPE_CHECKING:
    from ..api import Api
    from ..pooling import PoolingApi

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Invocations:
    """Hands a request on to the handler that its body is for."""

    def __init__(self, api: Api, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        self._handlers: dict[str, Handler] = {
            "messages": api.chat,
            "prompt": api.completions,
            "token_ids": api.generate,
        }
        if (spec := api.settings.pooling) is not None:
            self._handlers = _of_pooling(api.pooling, spec)
        self._read_body, self._sessions = read_body, api.sessions

    async def invoke(self, request: web.Request) -> web.StreamResponse:
        raw = request[BODY] = await self._read_body(request)
        body = decode(InvocationRequest, raw)
        if body.request_type is not None:
            return await self._sessions.invoke(request, raw)
        if name := request.headers.get(ADAPTER):
            request[BODY] = _with_model(raw, name)
        for field, handler in self._handlers.items():
            if getattr(body, field) is not None:
                return await handler(request)
        names = ", ".join(self._handlers)
        raise bad_request(f"What is asked for is told by one of the fields {names}, and none is there.", "messages")


def _with_model(raw: bytes, name: str) -> bytes:
    """The same body, for this model; what the body says elsewhere stays as it was written."""
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    model = msgspec.json.encode(name.encode(errors="replace").decode())  # headers may be no text
    return msgspec.json.encode(fields | {"model": msgspec.Raw(model)})


def _of_pooling(api: PoolingApi, spec: PoolingSpec) -> dict[str, Handler]:
    """Of a text alone a model makes what it is for: a vector, the scores of its labels, or what it has by token."""
    of_text = api.embeddings if EMBED in spec.tasks else api.classify if CLASSIFY in spec.tasks else api.pool
    return {
        "task": api.pool,
        "documents": api.rerank,
        "text_1": api.score,
        "queries": api.score,
        "input": of_text,
        "messages": of_text,
    }
