"""The handlers of Ollama's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from aiohttp import web
from msgspec import structs

from ...errors import ApiError, bad_request
from ...generation.adapter import chat_request, with_names
from ...generation.fields.unsupported import read
from ...generation.idempotency import StreamProgress
from ...generation.job import Job
from ...generation.prepare import PreparedRequest, ask_chat, ask_completion
from ...middleware.context import ACCOUNT, CLIENT, name_request
from ...ollama import about
from ...ollama.records import OllamaRecords, durations, loaded
from ...ollama.requests import chat_of, completion_of, context_of, generated_chat, model_of, renamed
from ...ollama.schemas import (
    Object,
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaModel,
    OllamaOptions,
    OllamaPullRequest,
)
from ...openai.schemas import GenerationFields
from ...output.answer import Answer, encode
from ...output.writer import NDJSON
from ...pooling.answers import as_json, numbers
from ...pooling.prepare import check_generates, pooling_of
from ...pooling.schemas import EmbeddingRequest
from ...settings import printable
from ...transport.body import check_length
from ...transport.json_response import json_response
from ..answering import model_for, seeded
from ..generate import Generator
from ..operators.administration import Administered
from ..pooling import PoolingApi

ReadBody = Callable[[web.Request], Awaitable[bytes]]
PULLED = ({"status": "pulling manifest"}, {"status": "success"})  # what Ollama says of a model that it has


class OllamaApi:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(
        self,
        generator: Generator,
        pooling: PoolingApi,
        administration: Administered,
        read_body: ReadBody,
        read_conversation: ReadBody,
    ) -> None:
        self._generator, self._settings, self._pooling = generator, generator.settings, pooling
        self._engine, self._administration = generator.engine, administration
        self._read_body, self._read_conversation = read_body, read_conversation

    # --- generating ----------------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /api/chat."""
        raw = await self._read_conversation(request)  # first: what is not read is left on the connection
        check_generates(self._settings)
        body = read(OllamaChatRequest, raw)
        body.model = model_of(body.model, self._settings.served)
        if not body.messages:
            return await self._keep(request, body.model, body.keep_alive, chats=True)
        return await self._chat(request, raw, body.options, lambda: chat_of(body, self._thinks))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /api/generate."""
        raw = await self._read_conversation(request)  # first: what is not read is left on the connection
        body = read(OllamaGenerateRequest, raw)
        body.model = model_of(body.model, self._settings.served)
        if not body.prompt:
            return await self._keep(request, body.model, body.keep_alive, chats=False)
        check_generates(self._settings)
        if not (body.raw or body.suffix):  # what stands between two texts is no turn of a conversation
            context = context_of(body)
            return await self._chat(request, raw, body.options, lambda: generated_chat(body, self._thinks), context)
        check_length(raw, self._settings.max_body_bytes)
        given = seeded(request, completion_of(body))
        try:
            await self._generator.want_adapter(request, given.model)
            asked = ask_completion(given, self._settings, name_request(request, None), request[CLIENT])
        except ApiError as error:
            raise renamed(error, body.options) from None
        return await self._answer(request, raw, body.options, given, asked)

    async def _wanted(self, request: web.Request, model: str | None) -> str:
        """Whoever asks for nothing of it wants it to be loaded: an adapter of --lora-folder is."""
        await self._generator.want_adapter(request, model)
        return model_for(request, model, self._settings)

    async def _keep(self, request: web.Request, model: str | None, keep_alive: object, chats: bool) -> web.Response:
        """Nothing but that the model is there, or that it may go: both are done where clients load models."""
        said = loaded(await self._wanted(request, model), chats, keep_alive)
        if self._settings.clients_load:
            own = self._administration
            await (own.unload_model if said["done_reason"] == "unload" else own.load_model)(self._settings.model)
        return json_response(said)

    @property
    def _thinks(self) -> bool:
        return self._settings.reasoning_parser is not None

    async def _chat(
        self,
        request: web.Request,
        raw: bytes,
        options: OllamaOptions | None,
        make: Callable[[], Object],
        context: list[int] | None = None,
    ) -> web.StreamResponse:
        """`context`: of /api/generate, what its prompt stands behind."""
        chats = context is None
        try:
            given = seeded(request, chat_request(make()))
            await self._generator.want_adapter(request, given.model)
            asked = ask_chat(given, self._settings, name_request(request, None), request[CLIENT])
        except ApiError as error:
            raise renamed(error, options, chats) from None
        if context:
            asked = replace(asked, prompts=[structs.replace(one, context=context) for one in asked.prompts])
        return await self._answer(request, raw, options, given, asked, chats)

    async def _answer(
        self,
        request: web.Request,
        raw: bytes,
        options: OllamaOptions | None,
        given: GenerationFields,
        asked: PreparedRequest,
        chats: bool = False,
    ) -> web.StreamResponse:
        # a limit, as far as it goes
        asked.rendering.update(max_tokens=None, cap=given.max_tokens or asked.rendering["cap"])

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> OllamaRecords:
            return OllamaRecords(answer, job, self._engine.times, chats)

        try:
            return await self._generator.answer(request, raw, given, asked, form)
        except ApiError as error:
            raise renamed(error, options, chats) from None

    # --- vectors -------------------------------------------------------------------------------------------------

    async def embed(self, request: web.Request) -> web.Response:
        """POST /api/embed: vectors of the length 1."""
        body = read(OllamaEmbedRequest, await self._read_body(request))
        body.model = model_of(body.model, self._settings.served)
        pooling_of(self._settings)
        if not body.input:
            return json_response({"model": await self._wanted(request, body.model), "embeddings": []})
        asked = EmbeddingRequest(
            model=body.model,
            input=[body.input] if isinstance(body.input, str) else list(body.input),
            dimensions=body.dimensions,
            truncate_prompt_tokens=None if body.truncate is False else -1,
            normalize=True,
        )
        answer, job = await self._pooling.vectors(request, asked)
        told = durations(self._engine.times(job), job)
        made = await as_json(job)
        beside = {name: told[name] for name in ("total_duration", "load_duration", "prompt_eval_count")}
        return json_response({"model": answer.model, "embeddings": made, **beside})

    async def embeddings(self, request: web.Request) -> web.Response:
        """POST /api/embeddings, the older one: the vector as the model has it."""
        body = read(OllamaEmbeddingsRequest, await self._read_body(request))
        if not body.prompt:
            raise bad_request("prompt is missing.", "prompt")
        model = model_of(body.model, self._settings.served)
        asked = EmbeddingRequest(model=model, input=body.prompt, truncate_prompt_tokens=-1)
        try:
            _, job = await self._pooling.vectors(request, asked)
        except ApiError as error:
            raise with_names(error, {"input": "prompt"}) from None
        return json_response({"embedding": numbers(job.choices[0])})

    # --- the model -----------------------------------------------------------------------------------------------

    async def tags(self, request: web.Request) -> web.Response:
        return json_response(_shown(request, await about.tags(self._settings)))

    async def running(self, request: web.Request) -> web.Response:
        state, is_leaving = self._administration.model_state, self._administration.is_leaving
        found = await about.running(self._settings, lambda model: state(model) != "unloaded", is_leaving)
        return json_response(_shown(request, found))

    async def show(self, request: web.Request) -> web.Response:
        body = read(OllamaModel, await self._read_body(request))
        name = model_for(request, model_of(body.model or body.name, self._settings.served), self._settings)
        return json_response(await about.show(self._settings, name))

    async def version(self, request: web.Request) -> web.Response:
        return json_response({"version": about.SPOKEN})

    async def pull(self, request: web.Request) -> web.Response:
        """POST /api/pull: what is served is there. No other model is fetched."""
        body = read(OllamaPullRequest, await self._read_body(request))
        asked = model_of(body.model or body.name, self._settings.served)
        if not asked:
            raise bad_request("model is missing.", "model")
        try:
            model_for(request, asked, self._settings)
        except ApiError:
            raise _unmade(request) from None
        if body.stream is False:
            return json_response(PULLED[-1])
        return web.Response(body=b"".join(encode(one) + b"\n" for one in PULLED), content_type=NDJSON)

    async def refuse(self, request: web.Request) -> web.Response:
        """Models are not made or fetched by clients. The body is read, so that the connection stays as it was."""
        await self._read_body(request)
        raise _unmade(request)


def _unmade(request: web.Request) -> ApiError:
    text = f"{printable(request.path)} is not supported: the server has the model that it was started with."
    return ApiError(400, text, code="not_supported")


def _shown(request: web.Request, told: Object) -> Object:
    """Of these models those that the key may ask for."""
    account = request.get(ACCOUNT)
    return {"models": [one for one in told["models"] if account is None or account.may_ask_for(one["name"])]}
