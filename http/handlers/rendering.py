"""The handlers of both sides of a token-in, token-out engine: prompts to tokens, tokens to answers. Nothing is
generated, and no slot is taken.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from ..accounts import check_model_of
from ..errors import ApiError, bad_request
from ..generation.choice import Choice
from ..generation.fields.decoding import check_model
from ..generation.fields.unsupported import read
from ..generation.job import Job
from ..generation.prepare import PreparedRequest, ask_chat, ask_completion
from ..generation.prompts import check_tokens
from ..middleware.context import ACCOUNT, CLIENT, REQUEST_ID, name_request
from ..openai.chat import ChatAnswer
from ..openai.completions import CompletionAnswer
from ..openai.rendering import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    EngineChoice,
    begins_inside,
    check_renders,
    fill,
    rendered,
    text_tokens,
)
from ..openai.schemas import ChatRequest, CompletionRequest, GenerationFields
from ..output.answer import Answer, AnswerOptions
from ..transport.json_response import json_response
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
        self._model(request, body.model)
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
        self._model(request, body.model)
        own, several = f"{kind}{request[REQUEST_ID]}", len(asked.prompts) > 1
        made = []
        for index, prompt in enumerate(asked.prompts):
            check_renders(body, prompt)
            wanted = bool(body.return_token_offsets)
            tokens, offsets = await self._engine.tokenize_as_rendered(prompt, asked.rendering, wanted)
            name = f"{own}-{index}" if several else own
            made.append(rendered(body, (tokens, offsets), name, self._settings, capped))
        return made

    async def derender_chat(self, request: web.Request) -> web.Response:
        """POST /v1/chat/completions/derender."""
        body = read(DerenderChatRequest, await self._read_body(request))
        _check_whole(body.stream)
        model, chat = self._model(request, body.model), body.chat_request
        asked = None if chat is None else ask_chat(chat, self._settings, request[REQUEST_ID], request[CLIENT])
        prompt = await self._text(body.prompt_token_ids, "prompt_token_ids") if body.prompt_token_ids else ""
        opened = begins_inside(self._settings, prompt)
        answer = Answer(
            model, True, secrets.randbits(64), int(time.time()), _plain(asked.wants if asked else self._options)
        )
        given = body.generate_response.choices
        job = Job([], [b""] * len(given), {}, asked.make_parser if asked is not None else None)
        job.seed = answer.seed
        job.choices = _choices(given)
        count = len(body.prompt_token_ids) if body.prompt_tokens is None else body.prompt_tokens
        await self._fill(job, given, chat, (count, opened))
        made = ChatAnswer(answer, job, None).whole()
        for choice, one in zip(made["choices"], given, strict=True):
            choice["logprobs"] = one.logprobs
        return json_response(made)

    async def derender_completion(self, request: web.Request) -> web.Response:
        """POST /v1/completions/derender."""
        body = read(DerenderCompletionRequest, await self._read_body(request))
        _check_whole(body.stream)
        model = self._model(request, body.model)
        given = [choice for one in body.generate_responses for choice in one.choices]
        answer = Answer(model, False, secrets.randbits(64), int(time.time()), self._options)
        job = Job([], [b""] * len(given))
        job.choices = _choices(given)
        await self._fill(job, given, body.completion_request, (body.prompt_tokens or 0, False))
        return json_response(CompletionAnswer(answer, job, None).whole())

    def _model(self, request: web.Request, asked: str | None) -> str:
        """Its name. 404 for one that is not there, or not for this key."""
        model = check_model(asked, *self._settings.names)
        check_model_of(request.get(ACCOUNT), model)
        return model

    @property
    def _options(self) -> AnswerOptions:
        return AnswerOptions(role=self._settings.response_role)

    async def _fill(
        self, job: Job, given: list[EngineChoice], body: GenerationFields | None, prompt: tuple[int, bool]
    ) -> None:
        """`prompt`: its tokens, and whether it leaves the answer inside the model's thinking."""
        skip = job.make_parser is None and (body is None or body.skip_special_tokens is not False)
        for choice, one in zip(job.choices, given, strict=True):
            job.rendered(choice.index, prompt[0], prompt[1])
            tokens = text_tokens(one, body, self._settings)
            fill(choice, one, await self._text(tokens, "token_ids", skip) if tokens else "", body)

    async def _text(self, tokens: list[int], field: str, skip_special: bool = False) -> str:
        if len(tokens) > self._settings.max_model_len:
            raise bad_request(
                f"{field} has {len(tokens)} ids, at most {self._settings.max_model_len} are taken.", field
            )
        try:
            return await self._engine.detokenize(check_tokens(tokens, field), skip_special)
        except ApiError as error:
            raise ApiError(error.status, error.message, field, error.code) from None


def _choices(given: list[EngineChoice]) -> list[Choice]:
    return [Choice(index) for index in range(len(given))]


def _plain(wants: AnswerOptions) -> AnswerOptions:
    """Of an answer that nobody here has generated: there are no ids, logprobs and times of it."""
    return AnswerOptions(role=wants.role, reasoning=wants.reasoning, forced=wants.forced)


def _check_whole(stream: bool | None) -> None:
    if stream:
        raise bad_request("stream is not supported here: what has come whole is made an answer of.", "stream")
