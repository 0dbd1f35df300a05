"""The handlers of SGLang's own API that no other has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
from aiohttp import web

import actorserve
from actorserve.actors.protocol.topics.prompts import Prompt, TextPrompt, TokenPrompt

from ...errors import ApiError, bad_request
from ...generation.fields.sampling import told_more
from ...generation.fields.unsupported import read
from ...generation.idempotency import StreamProgress
from ...generation.job import Job
from ...generation.prepare import PreparedRequest, ask_completion
from ...media.parts import check_text_size
from ...middleware.context import CLIENT, GIVEN, name_request
from ...openai.schemas import SessionParams
from ...openai.sessions import Continued
from ...output.answer import Answer
from ...pooling.answers import as_json
from ...pooling.prepare import check_generates, pooling_of
from ...sglang.answers import SglangAnswer, SglangTurn
from ...sglang.media import media_of
from ...sglang.requests import (
    completion_of,
    embedding_of,
    is_batch,
    more_told,
    renamed,
    sampling_of,
    wants_logprobs,
    wants_states,
)
from ...sglang.schemas import SglangEncodeRequest, SglangGenerateRequest
from ...transport.json_response import json_response
from ..answering import seeded
from ..generate import Generator
from ..pooling import PoolingApi

ReadBody = Callable[[web.Request], Awaitable[bytes]]


class SglangApi:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(
        self, generator: Generator, pooling: PoolingApi, read_body: ReadBody, read_conversation: ReadBody
    ) -> None:
        self._generator, self._pooling, self._settings = generator, pooling, generator.settings
        self._engine = generator.engine
        self._read_body, self._read_conversation = read_body, read_conversation

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate."""
        raw = await self._read_conversation(request)
        check_generates(self._settings)
        body = read(SglangGenerateRequest, raw)
        moves = not (wants_logprobs(body) or wants_states(body))  # told at the end, and nobody has another server's
        if GIVEN in request and not moves:
            raise bad_request("body: one with logprobs or hidden states stays.", "body")
        try:
            given = completion_of(body)
            given = seeded(request, given) if moves else given
            await self._generator.want_adapter(request, given.model)
            whole = msgspec.structs.replace(given, stream=False)  # no completion's stream tells logprobs of prompts
            asked = ask_completion(whole, self._settings, name_request(request, given.request_id), request[CLIENT])
        except ApiError as error:
            raise renamed(error, body) from None
        wants = replace(asked.wants, prompt_logprobs=False)  # its answers write them in their own form
        asked = replace(asked, prompts=self._with_media(body, asked.prompts), wants=wants, tells_all=True)
        asked = replace(asked, params=[told_more(one, bool(given.stream), **more_told(body)) for one in asked.params])
        if sampling_of(body).max_new_tokens is None:  # more than the model's length is no error then
            asked.rendering.update(max_tokens=None, cap=given.max_tokens)

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> SglangAnswer:
            return SglangAnswer(answer, job, self._engine.times, body)

        def turn(answer: Answer, job: Job, progress: StreamProgress | None, behind: Continued) -> SglangTurn:
            return SglangTurn(form(answer, job, progress), job, self._generator.sessions, behind)

        try:
            if given.session_params not in (None, SessionParams()):
                _check_turn(body, asked)
                name = body.rid[0] if isinstance(body.rid, list) and body.rid else body.rid
                return await self._generator.turn(request, raw, given, asked, turn, str(name or ""))
            return await self._generator.answer(request, raw, given, asked, form)
        except ApiError as error:
            raise renamed(error, body) from None

    def _with_media(self, body: SglangGenerateRequest, prompts: list[Prompt]) -> list[Prompt]:
        """The prompts with their pictures and sounds, beside which texts have the length of any other's."""
        rules = self._settings.media
        if rules is not None:
            texts = [one.text.encode() for one in prompts if isinstance(one, TextPrompt)]
            check_text_size(texts, self._settings.max_body_bytes)
        sources = media_of(body, len(prompts), is_batch(body), rules)
        return [
            msgspec.structs.replace(prompt, media=own)
            if own and isinstance(prompt, TextPrompt | TokenPrompt)
            else prompt
            for prompt, own in zip(prompts, sources, strict=True)
        ]

    async def encode(self, request: web.Request) -> web.Response:
        """POST /encode."""
        raw = await self._read_body(request)
        pooling_of(self._settings)
        body = read(SglangEncodeRequest, raw)
        try:
            answer, job = await self._pooling.vectors(request, embedding_of(body))
        except ApiError as error:
            raise renamed(error, body) from None
        name = f"{answer.seed:016x}{answer.created:08x}"
        vectors = [
            {"embedding": vector, "meta_info": {"id": name, "prompt_tokens": choice.prompt_tokens}}
            for choice, vector in zip(job.choices, await as_json(job), strict=True)
        ]
        return json_response(vectors if is_batch(body) else vectors[0])

    async def model_info(self, request: web.Request) -> web.Response:
        """GET /model_info."""
        settings, name = self._settings, self._generator.told_model(request)
        media, card = () if settings.media is None else settings.media.most, await settings.card()
        return json_response(
            {
                "model_path": name,
                "tokenizer_path": name,
                "is_generation": settings.generates,
                "preferred_sampling_params": settings.sampling_defaults or None,
                "weight_version": "default",
                "has_image_understanding": "image" in media,
                "has_audio_understanding": "audio" in media,
                "model_type": card.family or None,
                "architectures": [card.architecture] if card.architecture else None,
            }
        )

    async def server_info(self, request: web.Request) -> web.Response:
        """GET /get_server_info: what its load generators read."""
        name = self._generator.told_model(request)
        settings, figures = self._settings, self._engine.page_figures().engine
        return json_response(
            {
                "version": f"actorserve {actorserve.__version__}",
                "model_path": name,
                "served_model_name": name,
                "context_length": settings.max_model_len,
                "max_running_requests": settings.max_num_seqs,
                "internal_states": [{"running_requests": figures.running}],
            }
        )


def _check_turn(body: SglangGenerateRequest, asked: PreparedRequest) -> None:
    """400 for what is none of a session's turns, of which tokens are kept alone."""
    if sampling_of(body).max_new_tokens == 0:
        raise bad_request("max_tokens must be at least 1: a turn of a session has an answer.", "max_tokens")
    if any(one.media for one in asked.prompts if isinstance(one, TextPrompt | TokenPrompt)):
        raise bad_request("session_params: a turn of a session has no pictures, films or sounds.", "session_params")
