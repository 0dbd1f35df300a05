"""The handlers of what stands before a token-in, token-out engine: prompts to tokens. Nothing is generated, and no slot
is taken; what stands behind it is in derendering.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from ..generation.fields.unsupported import read
from ..generation.prepare import PreparedRequest, ask_chat, ask_completion
from ..middleware.context import CLIENT, REQUEST_ID, name_request
from ..openai.rendering import (
    check_renders,
    rendered,
)
from ..openai.schemas import ChatRequest, CompletionRequest, GenerationFields
from ..transport.json_response import json_response
from .answering import model_for
from .generate import Generator

ReadBody = Callable[[web.Request], Awaitable[bytes]]


class RenderingApi:
    """Its handlers, by the names that routes.py has for them."""

    def __init__(self, generator: Generator, read_body: ReadBody) -> None:
        self._engine, self._settings = generator.engine, generator.settings
        self._read_body = read_body

    async def render_chat(self, request: web.Request) -> web.Response:
        """POST /v1/chat/completions/render."""
        return await self.chat_as_tokens(request, read(ChatRequest, await self._read_body(request)))

    async def chat_as_tokens(
        self, request: web.Request, body: ChatRequest, capped: bool = False, kind: str = "chatcmpl-"
    ) -> web.Response:
        """`capped`: more tokens than the model has room for are no error, but as many as it has; `kind`: what the id of
        the request begins with.
        """
        asked = ask_chat(body, self._settings, name_request(request, body.request_id), request[CLIENT])
        made = await self._rendered(request, body, asked, kind, capped)
        return json_response(made[0])

    async def count_chat(self, request: web.Request) -> web.Response:
        """POST /v1/chat/completions/input_tokens: how many tokens its prompt has."""
        body = read(ChatRequest, await self._read_body(request))
        asked = ask_chat(body, self._settings, name_request(request, body.request_id), request[CLIENT])
        model_for(request, body.model, self._settings)
        tokens, _ = await self._engine.tokenize(asked.prompts[0], False)
        return json_response({"object": "response.input_tokens", "input_tokens": len(tokens)})

    async def render_completion(self, request: web.Request) -> web.Response:
        """POST /v1/completions/render."""
        body = read(CompletionRequest, await self._read_body(request))
        asked = ask_completion(body, self._settings, name_request(request, body.request_id), request[CLIENT])
        return json_response(await self._rendered(request, body, asked, "cmpl-"))

    async def _rendered(
        self, request: web.Request, body: GenerationFields, asked: PreparedRequest, kind: str, capped: bool = False
    ) -> list[dict[str, Any]]:
        """Of each prompt; several become requests of their own, which have ids of their own."""
        model_for(request, body.model, self._settings)
        own, several = f"{kind}{request[REQUEST_ID]}", len(asked.prompts) > 1
        made = []
        for index, prompt in enumerate(asked.prompts):
            check_renders(body, prompt)
            wanted = bool(body.return_token_offsets)
            tokens, offsets = await self._engine.tokenize_as_rendered(prompt, asked.rendering, wanted)
            name = f"{own}-{index}" if several else own
            made.append(rendered(body, (tokens, offsets), name, self._settings, capped))
        return made
