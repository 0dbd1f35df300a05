"""Prompts of other APIs' conversations as tokens: what of a chat /v1/chat/completions/render makes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from ...anthropic.requests import renamed as as_anthropic
from ...anthropic.schemas import MessagesRequest
from ...cohere.requests import renamed as as_cohere
from ...cohere.schemas import CohereChatRequest
from ...errors import ApiError
from ...generation.fields.unsupported import read
from ...openai.responses.requests import renamed as as_response
from ..generate import Generator
from ..rendering import RenderingApi
from ..responses.api import ResponsesApi
from .cohere import CohereApi


class DialectRendering:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(
        self,
        rendering: RenderingApi,
        generator: Generator,
        apis: tuple[ResponsesApi, CohereApi],
        read_body: Callable[[web.Request], Awaitable[bytes]],
    ) -> None:
        """`apis`: whose conversations they are, beside Anthropic's."""
        self._rendering, self._generator = rendering, generator
        self._responses, self._cohere = apis
        self._read_body = read_body

    async def message(self, request: web.Request) -> web.Response:
        """POST /v1/messages/render."""
        body = read(MessagesRequest, await self._read_body(request))
        chat, _ = await self._generator.message_chat(body)
        try:
            return await self._rendering.chat_as_tokens(request, chat, capped=True)
        except ApiError as error:
            raise as_anthropic(error) from None

    async def response(self, request: web.Request) -> web.Response:
        """POST /v1/responses/render."""
        chat = self._responses.chat_to_render(request, await self._read_body(request))
        try:
            return await self._rendering.chat_as_tokens(request, chat, kind="resp_")
        except ApiError as error:
            raise as_response(error) from None

    async def cohere(self, request: web.Request) -> web.Response:
        """POST /cohere/v2/chat/render."""
        body = read(CohereChatRequest, await self._read_body(request))
        try:
            return await self._rendering.chat_as_tokens(request, self._cohere.chat_request(body), capped=True)
        except ApiError as error:
            raise as_cohere(error, body) from None
