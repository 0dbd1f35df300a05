"""The handlers of llama.cpp's server that no other API has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
from aiohttp import web

import actorserve
from actorserve.actors.protocol.media import MediaSource
from actorserve.actors.protocol.topics.prompts import Prompt, TextPrompt, TokenPrompt

from ...errors import ApiError, bad_request, overloaded
from ...generation.adapter import with_names
from ...generation.fields.decoding import decode, decode_query
from ...generation.fields.unsupported import read
from ...generation.idempotency import StreamProgress
from ...generation.job import Engine, Job
from ...generation.prepare import ask_completion
from ...llamacpp.answers import LlamaCompletion, default_settings, settings_of
from ...llamacpp.media import FIELD, MARKER, check_rest, media_of
from ...llamacpp.requests import (
    by_tokens,
    check_scales,
    completion_of,
    embedding_of,
    has_content,
    infill_of,
    plain_prompt,
    renamed,
    texts_of,
)
from ...llamacpp.schemas import (
    LlamaCompletionRequest,
    LlamaEmbeddingRequest,
    LlamaInfillRequest,
    LlamaScale,
    LlamaSlotsQuery,
)
from ...middleware.context import ACCOUNT, BODY, CLIENT, name_request
from ...output.answer import Answer
from ...pooling.answers import as_json
from ...pooling.prepare import check_generates, pooling_of
from ...settings import ServedAdapter
from ...transport.body import check_length
from ...transport.json_response import json_response
from ..answering import seeded
from ..generate import Generator
from ..pooling import PoolingApi

MOST = 64  # texts of a request whose tokens are looked up


class LlamaApi:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(
        self,
        generator: Generator,
        pooling: PoolingApi,
        sleeps: Callable[[], bool],
        read_body: Callable[[web.Request], Awaitable[bytes]],
        read_long: Callable[[web.Request], Awaitable[bytes]],
    ) -> None:
        """`sleeps`: has somebody asked for a sleep? `read_long`: of a body that may have pictures."""
        self._pooling, self._sleeps = pooling, sleeps
        self._generator, self._settings = generator, generator.settings
        self._engine: Engine = generator.engine
        self._read_body, self._read_long = read_body, read_long

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """POST /completion."""
        raw = await self._read_long(request)
        check_generates(self._settings)
        most = self._settings.max_body_bytes
        if FIELD not in raw:
            check_length(raw, most)
        body = read(LlamaCompletionRequest, raw)
        check_rest(raw, body.prompt, most)
        return await self._answer(request, raw, body)

    async def infill(self, request: web.Request) -> web.StreamResponse:
        """POST /infill."""
        raw = await self._read_body(request)
        check_generates(self._settings)
        body = read(LlamaInfillRequest, raw)
        ends = infill_of(body, self._settings.special_tokens())
        return await self._answer(request, raw, body, ends)

    async def _answer(
        self, request: web.Request, raw: bytes, body: LlamaCompletionRequest, ends: list[int] | None = None
    ) -> web.StreamResponse:
        """`ends`: tokens that end it, beside the model's own."""
        if words := texts_of(body.logit_bias):
            if len(words) > MOST:
                raise bad_request(
                    f"logit_bias: at most {MOST} texts are taken; name others by their ids.", "logit_bias"
                )
            found = await asyncio.gather(*(self._engine.tokenize(TextPrompt(word, False), False) for word in words))
            ids = {word: tokens for word, (tokens, _) in zip(words, found, strict=True)}
            body.logit_bias = by_tokens(body.logit_bias or [], ids)
        media = media_of(body.prompt, self._settings.media)
        body.prompt = await plain_prompt(body.prompt, self._tokens_of)
        try:
            given = completion_of(body)
            given.stop_token_ids = ends
            drawn = seeded(request, given)  # `given` tells of its own seed alone
            await self._generator.want_adapter(request, given.model)
            asked = ask_completion(drawn, self._settings, name_request(request, None), request[CLIENT])
        except ApiError as error:
            raise renamed(error) from None
        if any(media):
            asked = replace(asked, prompts=self._with_media(asked.prompts, media))
        cap = given.max_tokens or asked.rendering["cap"]
        asked.rendering.update(max_tokens=None, cap=cap)  # more than the model's length is no error here
        texts = [await self._text_of(prompt) for prompt in asked.prompts]
        settings = settings_of(body, given, self._settings.sampling_defaults)

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> LlamaCompletion:
            return LlamaCompletion(answer, job, self._engine.times, body, settings, texts, self._settings.max_num_seqs)

        try:
            return await self._generator.answer(request, raw, drawn, asked, form)
        except ApiError as error:
            raise renamed(error) from None

    @staticmethod
    def _with_media(prompts: list[Prompt], media: list[list[MediaSource]]) -> list[Prompt]:
        """The prompts, all of them texts, with what stands at their marks."""
        texts = [prompt for prompt in prompts if isinstance(prompt, TextPrompt)]
        return [
            msgspec.structs.replace(prompt, media=own, marker=MARKER) if own else prompt
            for prompt, own in zip(texts, media, strict=True)
        ]

    async def _tokens_of(self, text: str, begins: bool) -> list[int]:
        tokens, _ = await self._engine.tokenize(TextPrompt(text, begins), False)
        return list(tokens)

    async def _text_of(self, prompt: Prompt) -> str:
        if isinstance(prompt, TokenPrompt):
            return await self._engine.detokenize(prompt.tokens)
        return prompt.text if isinstance(prompt, TextPrompt) else ""

    async def embeddings(self, request: web.Request) -> web.Response:
        """POST /embeddings: as /embedding for bodies that OpenAI has not, else as /v1/embeddings."""
        request[BODY] = raw = await self._read_body(request)
        return await (self.embedding if has_content(raw) else self._pooling.embeddings)(request)

    async def embedding(self, request: web.Request) -> web.Response:
        """POST /embedding: of each input a list with its vector, as where there are several."""
        raw = await self._read_body(request)
        pooling_of(self._settings)
        body = read(LlamaEmbeddingRequest, raw)
        try:
            _, job = await self._pooling.vectors(request, embedding_of(body))
        except ApiError as error:
            raise (error if body.content is None else with_names(error, {"input": "content"})) from None
        made = [{"index": index, "embedding": [vector]} for index, vector in enumerate(await as_json(job))]
        return json_response(made)

    # --- the server ----------------------------------------------------------------------------------------------

    async def props(self, request: web.Request) -> web.Response:
        """GET /props."""
        name = self._generator.told_model(request)
        settings, about = self._settings, self._settings.tokenizer_info
        media = () if settings.media is None else settings.media.most
        router = {
            "role": "router",
            "max_instances": settings.models_max or len(settings.all_models),
            "models_autoload": settings.models_autoload,
        }
        return json_response(
            (router if settings.loads_when_asked and "model" not in request.query else {})
            | {
                "default_generation_settings": {
                    "params": default_settings(settings.sampling_defaults),
                    "n_ctx": settings.max_model_len,
                },
                "total_slots": settings.max_num_seqs,
                "model_alias": name,
                "model_path": name,
                "media_marker": MARKER,
                "modalities": {"vision": "image" in media, "video": "video" in media, "audio": "audio" in media},
                "chat_template": about.get("chat_template", ""),
                "bos_token": about.get("bos_token") or "",
                "eos_token": about.get("eos_token") or "",
                "build_info": f"actorserve {actorserve.__version__}",
                "is_sleeping": self._sleeps(),
                "endpoint_slots": "enable_slots" not in settings.off,
                "endpoint_props": False,
                "endpoint_metrics": "enable_metrics" not in settings.off,
            }
        )

    async def adapters(self, request: web.Request) -> web.Response:
        """GET /lora-adapters: those that this key may name. None of them is added to all answers."""
        self._generator.told_model(request)
        shown = self._adapters(request)
        return json_response([{"id": one.id, "name": one.name, "path": one.path, "scale": 0.0} for one in shown])

    async def scale_adapters(self, request: web.Request) -> web.Response:
        """POST /lora-adapters."""
        scales = decode(list[LlamaScale], await self._read_body(request))
        check_scales(scales, {one.id for one in self._adapters(request)})
        return json_response({"success": True})

    def _adapters(self, request: web.Request) -> list[ServedAdapter]:
        account, every = request.get(ACCOUNT), self._settings.adapters.all()
        return every if account is None else [one for one in every if account.may_ask_for(one.name)]

    async def change_slot(self, request: web.Request) -> web.Response:
        """POST /slots/{id}, as llama-server without --slot-save-path: nothing stays in a slot that could be saved."""
        await self._read_body(request)
        text = "What was computed of a text is found again by all requests; --kv-offload keeps it in a folder, too."
        raise ApiError(501, f"This server does not support slots action. {text}", code="not_supported")

    async def slots(self, request: web.Request) -> web.Response:
        """GET /slots: sequences that can run at once, and how many of them do; who waits has none."""
        self._generator.told_model(request)
        query, running = decode_query(LlamaSlotsQuery, request.query), self._engine.page_figures().engine.running
        if query.fail_on_no_slot and running >= self._settings.max_num_seqs:
            raise overloaded("No slot is free.")
        context = self._settings.max_model_len
        slots = [
            {"id": number, "n_ctx": context, "is_processing": number < running}
            for number in range(self._settings.max_num_seqs)
        ]
        return json_response(slots)
