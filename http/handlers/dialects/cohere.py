"""The handlers of Cohere's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from ...cohere.answers import CohereMessage, floats, vectors
from ...cohere.requests import chat_of, embedding_of, renamed
from ...cohere.schemas import CohereChatRequest, CohereEmbedRequest
from ...cohere.v1.answers import CohereAnswerV1
from ...cohere.v1.requests import history, newer, of_v1
from ...cohere.v1.schemas import CohereChatV1Request
from ...errors import ApiError
from ...generation.adapter import chat_request
from ...generation.fields.unsupported import read
from ...generation.idempotency import StreamProgress
from ...generation.job import Job
from ...generation.prepare import ask_chat
from ...middleware.context import CLIENT, name_request
from ...openai.schemas import ChatRequest
from ...output.answer import Answer
from ...output.formats import MakeAnswerFormat
from ...output.writer import EVENTS
from ...pooling.prepare import check_generates, pooling_of
from ...transport.json_response import json_response
from ..answering import seeded
from ..generate import Generator
from ..pooling import PoolingApi

LITELLM = "unspecified:litellm"  # as Request-Source; Cohere's own Java client, too, accepts application/json alone
ReadBody = Callable[[web.Request], Awaitable[bytes]]


class CohereApi:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(
        self, generator: Generator, pooling: PoolingApi, read_body: ReadBody, read_conversation: ReadBody
    ) -> None:
        self._generator, self._settings, self._pooling = generator, generator.settings, pooling
        self._read_body, self._read_conversation = read_body, read_conversation

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v2/chat."""
        raw = await self._read_conversation(request)  # first: what is not read is left on the connection
        check_generates(self._settings)
        as_lines = request.headers.get("Request-Source") == LITELLM

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> CohereMessage:
            return CohereMessage(answer, job, as_lines)

        return await self._chat(request, raw, read(CohereChatRequest, raw), form)

    async def chat_v1(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat."""
        raw = await self._read_conversation(request)
        check_generates(self._settings)
        body = read(CohereChatV1Request, raw)
        as_events = any(EVENTS in request.headers.get(name, "") for name in ("Accepts", "Accept"))  # sic

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> CohereAnswerV1:
            return CohereAnswerV1(answer, job, history(body), as_events)

        try:
            return await self._chat(request, raw, newer(body), form)
        except ApiError as error:
            raise of_v1(error, body) from None

    async def _chat(
        self, request: web.Request, raw: bytes, body: CohereChatRequest, form: MakeAnswerFormat
    ) -> web.StreamResponse:
        try:
            given = seeded(request, self.chat_request(body))
            await self._generator.want_adapter(request, given.model)
            asked = ask_chat(given, self._settings, name_request(request, None), request[CLIENT])
        except ApiError as error:
            raise renamed(error, body) from None
        cap = asked.rendering["max_tokens"] or asked.rendering["cap"]
        asked.rendering.update(max_tokens=None, cap=cap)  # more than the model's length is no error here
        return await self._generator.answer(request, raw, given, asked, form)

    def chat_request(self, body: CohereChatRequest) -> ChatRequest:
        """The one that asks for the same."""
        template = str(self._settings.tokenizer_info.get("chat_template") or "")
        return chat_request(chat_of(body, self._settings.reasoning_parser is not None, template))

    async def check_key(self, request: web.Request) -> web.Response:
        """POST /v1/check-api-key. With a wrong one nobody comes here."""
        await self._read_body(request)
        return json_response({"valid": True})

    async def embed(self, request: web.Request) -> web.Response:
        """POST /v2/embed."""
        answer, job, _, types, texts = await self._embedded(request)
        return json_response(vectors(answer, job, types, texts))

    async def embed_older(self, request: web.Request) -> web.Response:
        """POST /v1/embed."""
        answer, job, body, types, texts = await self._embedded(request)
        if body.embedding_types is None:
            return json_response(floats(answer, job, texts))
        return json_response(vectors(answer, job, types, texts, "1"))

    async def _embedded(self, request: web.Request) -> tuple[Answer, Job, CohereEmbedRequest, list[str], list[str]]:
        """The job, its body, the types that vectors are wanted in, and the texts."""
        raw = await self._read_body(request)
        pooling_of(self._settings)
        body = read(CohereEmbedRequest, raw)
        asked, types = embedding_of(body)
        try:
            answer, job = await self._pooling.vectors(request, asked)
        except ApiError as error:
            raise renamed(error, body) from None
        return answer, job, body, types, [part for part in asked.input or [] if isinstance(part, str)]
