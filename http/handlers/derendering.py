"""The handlers that make answers of what a token-in, token-out engine has said, whole or chunk by chunk."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from ..errors import ApiError, bad_request
from ..generation.choice import Choice, PlainText
from ..generation.fields.unsupported import read
from ..generation.job import Job
from ..generation.logprobs import LogprobLists
from ..generation.prepare import PreparedRequest, ask_chat
from ..generation.prompts import check_tokens
from ..middleware.context import CLIENT, REQUEST_ID
from ..openai.chat import ChatAnswer
from ..openai.completions import CompletionAnswer
from ..openai.derendering import (
    BROKEN,
    TAIL,
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderFields,
    EngineAnswer,
    EngineChoice,
    EngineChunk,
    StreamState,
    begins_inside,
    check_form,
    check_stream,
    each,
    fill,
    has_logprobs,
    replay,
    text_tokens,
    token_logprobs,
    unnamed,
)
from ..openai.schemas import GenerationFields
from ..output.answer import Answer, AnswerOptions, counts
from ..transport.json_response import json_response
from .answering import model_for
from .generate import Generator

AT_ONCE = 2048  # tokens whose texts are asked for


class DerenderingApi:
    """Its handlers, by the names that routes.py has for them."""

    def __init__(self, generator: Generator, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        self._engine, self._settings = generator.engine, generator.settings
        self._read_body = read_body

    async def chat(self, request: web.Request) -> web.Response:
        """POST /v1/chat/completions/derender."""
        body = read(DerenderChatRequest, await self._read_body(request))
        check_form(body, "generate_response")
        model, given = model_for(request, body.model, self._settings), body.chat_request
        asked = None if given is None else ask_chat(given, self._settings, request[REQUEST_ID], request[CLIENT])
        engine = body.generate_response or body.generate_chunk
        wants = self._wants(given, has_logprobs(engine), asked)
        opened = await self._opened(body, body.prompt_token_ids or (engine.prompt_token_ids if engine else None))
        if body.generate_chunk is not None:
            return await self._chat_chunk(body, body.generate_chunk, (model, wants, asked), opened)
        assert body.generate_response is not None
        whole = body.generate_response
        answer = Answer(model, True, secrets.randbits(64), int(time.time()), wants)
        job = _job(len(whole.choices), asked, answer.seed)
        count = len(body.prompt_token_ids or ()) if body.prompt_tokens is None else body.prompt_tokens
        await self._fill(job, whole, given, (count, opened, body.prompt_token_ids))
        return json_response(ChatAnswer(answer, job, None).whole() | whole.beside())

    async def completion(self, request: web.Request) -> web.Response:
        """POST /v1/completions/derender."""
        body = read(DerenderCompletionRequest, await self._read_body(request))
        check_form(body, "generate_responses")
        model, given = model_for(request, body.model, self._settings), body.completion_request
        if body.generate_chunk is not None:
            return await self._text_chunk(body, body.generate_chunk, model)
        whole = body.generate_responses or []
        answer = Answer(
            model, False, secrets.randbits(64), int(time.time()), self._wants(given, any(map(has_logprobs, whole)))
        )
        lengths = each(body.prompt_tokens, len(whole), "prompt_tokens")
        prompts = each(body.prompt_token_ids, len(whole), "prompt_token_ids")
        if any(isinstance(one, int) for one in prompts):
            raise bad_request("prompt_token_ids: there is a list for each of generate_responses.", "prompt_token_ids")
        made: list[dict[str, Any]] = []
        usage = counts(0, 0, 0, 0)
        for one, length, prompt in zip(whole, lengths, prompts, strict=True):
            job = _job(len(one.choices), None, answer.seed)
            await self._fill(job, one, given, (length or 0, False, prompt))
            part = CompletionAnswer(answer, job, None).whole()
            made += [choice | {"index": len(made) + index} for index, choice in enumerate(part["choices"])]
            usage = _sum(usage, part["usage"])
        beside = whole[0].beside() if len(whole) == 1 else {"id": whole[0].request_id or answer.id}
        return json_response(answer.head(False) | {"choices": made, "usage": usage} | beside)

    # --- chunks --------------------------------------------------------------------------------------------------

    async def _chat_chunk(
        self,
        body: DerenderChatRequest,
        chunk: EngineChunk,
        about: tuple[str, AnswerOptions, PreparedRequest | None],
        opened: bool,
    ) -> web.Response:
        """`about`: the model's name, what the answer is to say, and the request whose answer it is."""
        model, wants, asked = about
        check_stream(body.chat_request)
        state = msgspec.structs.replace(self._state(body, chunk), opened=opened)
        answer = Answer(model, True, state.seed, state.created, wants)
        job = _job(len(chunk.choices), asked, state.seed)
        if job.choices:
            job.rendered(0, 1, opened)
            state = await self._read_chunk(job.choices[0], state, body, chunk, body.chat_request)
        made = ChatAnswer(answer, job, None)
        parts = [made.part(choice, begins=not state.begun) for choice in job.choices]
        beside = {"prompt_token_ids": chunk.prompt_token_ids} if wants.prompt_ids else {}
        state = msgspec.structs.replace(state, begun=state.begun or bool(parts))
        return _chunk_answer(answer, body, chunk, (parts, beside), state)

    async def _text_chunk(self, body: DerenderCompletionRequest, chunk: EngineChunk, model: str) -> web.Response:
        check_stream(body.completion_request)
        state = self._state(body, chunk)
        answer = Answer(
            model, False, state.seed, state.created, self._wants(body.completion_request, has_logprobs(chunk))
        )
        job = _job(len(chunk.choices), None, state.seed)
        made = CompletionAnswer(answer, job, None)
        parts = []
        for choice in job.choices:
            state = await self._read_chunk(choice, state, body, chunk, body.completion_request)
            lists = LogprobLists(answer.wants.as_ids, state.logprob_offset, bytes(state.pending))
            parts.append(made.part(choice, lists))
            state = msgspec.structs.replace(state, logprob_offset=lists.offset, pending=list(lists.pending))
        return _chunk_answer(answer, body, chunk, (parts, {}), state)

    async def _read_chunk(
        self,
        choice: Choice,
        state: StreamState,
        body: DerenderChatRequest | DerenderCompletionRequest,
        chunk: EngineChunk,
        request: GenerationFields | None,
    ) -> StreamState:
        """The choice has what is new of its text, and the end where it has ended."""
        (one,) = chunk.choices
        given = EngineChoice([*state.token_ids, *(one.token_ids or ())], one.index, one.finish_reason, one.stop_reason)
        ended = one.finish_reason is not None
        known = given if ended else EngineChoice(given.token_ids)  # what may have ended it waits for what comes behind
        tokens = text_tokens(known, request, self._settings)
        text = await self._behind(state.prompt, tokens, self._skips(choice, request)) if tokens else ""
        if not ended:
            text = text.rstrip(BROKEN)
        choice.index, news = one.index, await replay(choice, state, text)
        choice.text.append(news)
        choice.ids, choice.tokens = list(one.token_ids or ()), len(given.token_ids)
        choice.prompt_ids = list(chunk.prompt_token_ids or ())
        choice.logprobs = token_logprobs(one.logprobs, await self._texts(unnamed(one.logprobs, self._settings)))
        choice.logprob_tokens = len(choice.logprobs)
        choice.finish_reason, choice.stop_reason = one.finish_reason, one.stop_reason
        return msgspec.structs.replace(
            state, token_ids=given.token_ids, parts=[*state.parts, *([len(news)] if news else [])]
        )

    def _state(self, body: DerenderChatRequest | DerenderCompletionRequest, chunk: EngineChunk) -> StreamState:
        """As the client brings it back, or a new one, with the prompt's end."""
        state = body.stream_state or StreamState(seed=secrets.randbits(63), created=int(time.time()))
        told = body.prompt_token_ids or chunk.prompt_token_ids or state.prompt
        self._check_length(told, "prompt_token_ids")
        prompt = [token for token in told if isinstance(token, int)]
        if len(prompt) < len(told):
            raise bad_request("prompt_token_ids: of a chunk they are those of one prompt.", "prompt_token_ids")
        return msgspec.structs.replace(state, prompt=prompt[-TAIL:])

    # --- texts ---------------------------------------------------------------------------------------------------

    async def _fill(
        self,
        job: Job,
        given: EngineAnswer,
        body: GenerationFields | None,
        prompt: tuple[int, bool, Sequence[int] | None],
    ) -> None:
        """`prompt`: its tokens, whether it leaves the answer inside the model's thinking, and their ids."""
        count, opened, ids = prompt
        for choice, one in zip(job.choices, given.choices, strict=True):
            if not one.token_ids and one.finish_reason in (None, "stop"):  # others may have come before any
                raise bad_request(f"token_ids of choice {one.index} must not be empty.", "token_ids")
            job.rendered(choice.index, count, opened)
            tokens = text_tokens(one, body, self._settings)
            behind = given.prompt_token_ids if ids is None else ids
            text = await self._behind(behind, tokens, self._skips(choice, body)) if tokens else ""
            fill(choice, one, text, body)
            choice.prompt_ids = list(given.prompt_token_ids or ())
            choice.logprobs = token_logprobs(one.logprobs, await self._texts(unnamed(one.logprobs, self._settings)))
            choice.logprob_tokens = len(choice.logprobs)

    def _skips(self, choice: Choice, body: GenerationFields | None) -> bool:
        """Are special tokens left out? A parser reads them."""
        return isinstance(choice.parser, PlainText) and (body is None or body.skip_special_tokens is not False)

    async def _behind(self, prompt: Sequence[int] | None, tokens: list[int], skip: bool) -> str:
        """The text of tokens as it stands behind the prompt's: some tokenizers leave out a space before the first."""
        if not prompt:
            return await self._text(tokens, "token_ids", skip)
        self._check_length(prompt, "prompt_token_ids")
        tail = list(prompt[-TAIL:])
        before = await self._text(tail, "prompt_token_ids", skip)
        whole = await self._text([*tail, *tokens], "token_ids", skip)
        return whole[len(before) :] if whole.startswith(before) else await self._text(tokens, "token_ids", skip)

    async def _opened(self, body: DerenderChatRequest, prompt: list[int] | None) -> bool:
        """Does the prompt leave the answer inside the model's thinking? As its first chunk has it."""
        if body.stream_state is not None and body.stream_state.opened is not None:
            return body.stream_state.opened
        return begins_inside(self._settings, await self._text(prompt, "prompt_token_ids") if prompt else "")

    async def _text(self, tokens: list[int], field: str, skip_special: bool = False) -> str:
        self._check_length(tokens, field, TAIL)
        try:
            return await self._engine.detokenize(check_tokens(tokens, field), skip_special)
        except ApiError as error:
            raise ApiError(error.status, error.message, field, error.code) from None

    def _check_length(self, tokens: Sequence[Any], field: str, more: int = 0) -> None:
        if len(tokens) > (most := self._settings.max_model_len) + more:
            raise bad_request(f"{field} has {len(tokens)} ids, at most {most} (max_model_len) are taken.", field)

    async def _texts(self, tokens: set[int]) -> dict[int, str]:
        """Of each by itself."""
        named = check_tokens(sorted(tokens), "logprobs")
        texts: list[str] = []
        for start in range(0, len(named), AT_ONCE):
            texts += await self._engine.token_texts(named[start : start + AT_ONCE])
        return dict(zip(named, texts, strict=True))

    def _wants(
        self, body: GenerationFields | None, told_logprobs: bool, asked: PreparedRequest | None = None
    ) -> AnswerOptions:
        """What the answer is to say: of one that nobody here has generated there are no times. Who is not told the
        thinking is not told its tokens.
        """
        told = None if asked is None else asked.wants
        hidden = asked is not None and asked.make_parser is not None and told is not None and not told.reasoning
        return AnswerOptions(
            role=self._settings.response_role if told is None else told.role,
            reasoning=told is None or told.reasoning,
            forced=told is not None and told.forced,
            logprobs=told_logprobs and not hidden,
            as_ids=body is not None and bool(body.return_tokens_as_token_ids),
            ids=not hidden and body is not None and bool(body.return_token_ids),
            prompt_ids=body is not None and bool(body.return_token_ids),
        )


def _job(choices: int, asked: PreparedRequest | None, seed: int) -> Job:
    """One that is done."""
    job = Job([], [b""] * choices, {}, None if asked is None else asked.make_parser)
    job.seed = seed
    job.choices = [Choice(index) for index in range(choices)]
    return job


def _chunk_answer(
    answer: Answer,
    body: DerenderFields,
    chunk: EngineChunk,
    parts: tuple[list[dict[str, Any]], dict[str, Any]],
    state: StreamState,
) -> web.Response:
    """The event, of its choices and what stands beside them, and what the client is to bring back."""
    choices, beside = parts
    made = answer.head(True) | {"id": chunk.request_id or answer.id, "choices": choices, **beside}
    if chunk.usage is not None:
        given = getattr(body, "prompt_tokens", None)
        prompt = given if isinstance(given, int) else chunk.usage.prompt_tokens
        made["usage"] = counts(prompt, chunk.usage.completion_tokens or 0, 0, 0)
    if chunk.metrics is not None:
        made["metrics"] = chunk.metrics
    return json_response({"chunk": made, "stream_state": msgspec.to_builtins(state)})


def _sum(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two usages together."""
    return {
        name: _sum(value, other[name]) if isinstance(value, dict) else value + other[name]
        for name, value in one.items()
    }
