"""The endpoints that generate: each reads its body, and says in which form the answer comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from aiohttp import web

from actorserve.actors.accounts.account import Account
from actorserve.actors.protocol.topics.calls import Measured
from actorserve.actors.protocol.topics.prompts import TextPrompt, TokenPrompt

from ..accounts import check_model_of
from ..anthropic.edits import Edits, edited
from ..anthropic.requests import named, omits_thinking, renamed
from ..anthropic.requests import to_chat as messages_to_chat
from ..anthropic.schemas import MessagesRequest, Object
from ..errors import ApiError, bad_request
from ..generation.adapter import chat_request, with_names
from ..generation.beam_search import BeamSearch, check_beams
from ..generation.fields.decoding import check_model
from ..generation.fields.sampling import max_tokens_of
from ..generation.fields.unsupported import read
from ..generation.idempotency import StreamProgress
from ..generation.job import Engine, Job
from ..generation.prepare import PreparedRequest, as_mistral, ask_chat, ask_chats, ask_completion
from ..generation.prompts import chat_prompt
from ..middleware.context import ACCOUNT, CLIENT, LIMITS, NOTED, REQUEST_ID, RequestContext, name_request
from ..openai.chat import ChatAnswer
from ..openai.completions import CompletionAnswer
from ..openai.mistral import is_mistrals
from ..openai.schemas import (
    ChatBatchRequest,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    GenerationFields,
    SessionParams,
)
from ..openai.session_turns import TurnFormat
from ..openai.sessions import Continued, Sessions, session_of
from ..openai.token_ids import TokensFormat, completion_of
from ..output.answer import Answer, AnswerOptions
from ..output.formats import MakeAnswerFormat, MessagesFormat
from ..output.writer import AnswerFormat
from ..settings import Settings
from ..sglang.names import one_of
from ..transport.json_response import json_response
from .answering import Answering, seeded

BEAMS = "use_beam_search"
T = TypeVar("T")
MakeTurnFormat = Callable[[Answer, Job, StreamProgress | None, Continued], TurnFormat]


@contextmanager
def by_its_name(body: ChatRequest | CompletionRequest) -> Iterator[None]:
    """Errors of the model name `lora_path` where the body says by that which it is."""
    try:
        yield
    except ApiError as error:
        raise (with_names(error, {"model": "lora_path"}) if one_of(body.lora_path, "lora_path") else error) from None


class Generator(Answering):
    """Answers requests that generate."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self.sessions = Sessions(engine)

    async def chat(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body = seeded(request, read(ChatRequest, raw))
        with by_its_name(body):
            return await self._chat(request, raw, body)

    async def _chat(self, request: web.Request, raw: bytes, body: ChatRequest) -> web.StreamResponse:
        check_beams(body)
        await self.want_adapter(request, body.model)
        asked = ask_chat(body, self.settings, name_request(request, body.request_id), request[CLIENT])
        if is_mistrals(request.headers.get("User-Agent", "")):
            asked = as_mistral(asked)
        if body.use_beam_search:
            return await self._beams(request, body, asked, ChatAnswer)
        return await self.answer(request, raw, body, asked, ChatAnswer)

    async def chats(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/chat/completions/batch."""
        body = seeded(request, read(ChatBatchRequest, raw))
        if body.use_beam_search:
            raise bad_request("use_beam_search does not go with several conversations.", BEAMS)
        check_beams(body)
        with by_its_name(body):
            await self.want_adapter(request, body.model)
            asked = ask_chats(body, self.settings, name_request(request, body.request_id), request[CLIENT])
            if is_mistrals(request.headers.get("User-Agent", "")):
                asked = as_mistral(asked)
            return await self.answer(request, raw, body, asked, ChatAnswer)

    async def completions(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/completions."""
        body = seeded(request, read(CompletionRequest, raw))
        with by_its_name(body):
            return await self._completion(request, raw, body)

    async def _completion(self, request: web.Request, raw: bytes, body: CompletionRequest) -> web.StreamResponse:
        check_beams(body)
        await self.want_adapter(request, body.model)
        if body.session_params not in (None, SessionParams()):
            return await self._turn(request, raw, body)
        asked = ask_completion(body, self.settings, name_request(request, body.request_id), request[CLIENT])
        if body.use_beam_search:
            return await self._beams(request, body, asked, CompletionAnswer)
        for prompt in asked.echoed:
            text = prompt.text if isinstance(prompt, TextPrompt) else ""
            if isinstance(prompt, TokenPrompt):
                text = await self._echoed(prompt)
            if asked.wants.echo is not None:
                asked.wants.echo.append(text)
        return await self.answer(request, raw, body, asked, CompletionAnswer)

    async def _echoed(self, prompt: TokenPrompt) -> str:
        """The text that stands before the answer."""
        try:
            return await self.engine.detokenize(prompt.tokens)
        except ApiError as error:
            if error.param != "tokens":
                raise
            text = error.message.replace("tokens:", "prompt:")
            raise ApiError(error.status, text, "prompt", error.code) from None

    async def _turn(self, request: web.Request, raw: bytes, body: CompletionRequest) -> web.StreamResponse:
        """One of a session."""
        asked = ask_completion(body, self.settings, name_request(request, body.request_id), request[CLIENT])

        def make(answer: Answer, job: Job, progress: StreamProgress | None, turn: Continued) -> TurnFormat:
            return TurnFormat(CompletionAnswer(answer, job, progress), job, self.sessions, turn, answer.id)

        return await self.turn(request, raw, body, asked, make)

    async def turn(
        self,
        request: web.Request,
        raw: bytes,
        body: CompletionRequest,
        asked: PreparedRequest,
        make: MakeTurnFormat,
        name: str | None = None,
    ) -> web.StreamResponse:
        """One of a session, whatever the API that asks for it. `name`: what its client has its answer called; None: as
        a completion's.
        """
        owner = self.sessions.owner(session_of(body))
        await self.give_to(request, owner)
        key = await self.key(request, raw, owner)
        begun = self.goes_on(request) or self.is_kept(key)
        if name is None:
            name = "" if key is not None else self._new_answer(request, body, "", asked.wants).id
        turn = await self.sessions.go_on(body, asked, request[CLIENT], self.settings.model, begun, name)

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> AnswerFormat:
            return make(answer, job, progress, turn)

        return await self.answer(request, raw, body, turn.asked, form, owner)

    async def generate(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /inference/v1/generate."""
        body = read(GenerateRequest, raw)
        given = seeded(request, completion_of(body))
        check_beams(given)
        await self.want_adapter(request, given.model)
        asked = ask_completion(given, self.settings, name_request(request, given.request_id), request[CLIENT])

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> AnswerFormat:
            return TokensFormat(answer, job, progress, request[REQUEST_ID])

        return await self.answer(request, raw, given, asked, form)

    async def _beams(
        self, request: web.Request, body: GenerationFields, asked: PreparedRequest, make: MakeAnswerFormat
    ) -> web.Response:
        """The likeliest answers to each prompt."""
        model = check_model(body.model, *self.settings.names)
        account = request.get(ACCOUNT)
        check_model_of(account, model)
        if account is not None and account.is_limited:
            raise bad_request("use_beam_search is for keys without limits: what it uses is known too late.", BEAMS)
        search = BeamSearch(self.engine, body, asked, self.settings.end_tokens, self.settings.encoder, account)
        wanted, job = body.n or 1, Job(asked.prompts, asked.params[: body.n or 1], {}, asked.make_parser)
        try:
            for index, prompt in enumerate(asked.prompts):
                tokens, beams = await search.run(prompt, max_tokens_of(body), self.settings.max_model_len)
                for choice, beam in zip(job.choices[index * wanted : (index + 1) * wanted], beams, strict=False):
                    job.rendered(choice.index, len(tokens))
                    choice.text.append(await self.engine.detokenize(beam.tokens, True) if beam.tokens else "")
                    choice.tokens, choice.finish_reason = len(beam.tokens), beam.reason
                    choice.logprobs, choice.logprob_tokens = beam.told, len(beam.told)
        except asyncio.CancelledError:  # its client has gone
            self._charge(account, search.used(wanted))
            raise
        self._charge(account, search.used(wanted))
        told = asked.wants
        wants = AnswerOptions(role=told.role, logprobs=told.logprobs, as_ids=told.as_ids)
        answer = self._new_answer(request, body, model, wants)
        request[NOTED] = RequestContext(request[REQUEST_ID], model, job, answer.id)
        return json_response(make(answer, job, None).whole())

    def _charge(self, account: Account | None, used: tuple[int, int]) -> None:
        """Tokens of prompts and answers that come of many sequences."""
        if account is not None and any(used):
            self.engine.charge_alone(account, *used)

    async def messages(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/messages."""
        body = read(MessagesRequest, raw)
        chat, edits = await self.message_chat(body)
        try:
            asked_for = seeded(request, chat)
            request_id = name_request(request, asked_for.request_id)
            await self.want_adapter(request, asked_for.model)
            asked = ask_chat(asked_for, self.settings, request_id, request[CLIENT])
        except ApiError as error:
            raise renamed(error) from None
        asked.rendering.update(max_tokens=None, cap=body.max_tokens)  # more than the model's length is no error here
        asked.rendering["constrained_by"] = named(asked.rendering["constrained_by"])

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> AnswerFormat:
            made = MessagesFormat(answer, job, omits_thinking(body), body.max_tokens, edits)
            request[NOTED].answer_id = made.answer.id
            return made

        return await self.answer(request, raw, asked_for, asked, form)

    async def message_chat(self, body: MessagesRequest) -> tuple[ChatRequest, Edits | None]:
        """The chat request that asks for the same, and how its conversation was edited."""
        body, edits = await edited(body, partial(self.tokens_of, messages_to_chat))
        chat = messages_to_chat(body)
        if self.settings.reasoning_parser is None:
            chat.pop("thinking_token_budget", None)  # a model that does not think keeps to any budget
        try:
            return chat_request(chat), edits
        except ApiError as error:
            raise renamed(error) from None

    async def measure(self, request: web.Request, sound: bytes, going_on: bool = False) -> Measured:
        """How long a sound is, and its windows; 429 for a key of which no request is let in, before it is decoded.
        `going_on`: with one that was let in, and is among those that are counted.
        """
        if not going_on:
            self.check_limits(request)
        return await self.engine.measure(sound)

    def check_limits(self, request: web.Request) -> None:
        """429 for a key of which no request is let in, before what is done ahead of the request itself."""
        if (account := request.get(ACCOUNT)) is not None:
            request[LIMITS], refusal = self.engine.check_limits(account)
            if refusal is not None:
                raise refusal

    async def tokens_of(self, chat_of: Callable[[T], Object], body: T) -> int:
        """How many the prompt has of what is a chat request by another name."""
        try:
            prompt = chat_prompt(chat_request(chat_of(body)), self.settings)
        except ApiError as error:
            raise renamed(error) from None
        tokens, _ = await self.engine.tokenize(prompt, False)
        return len(tokens)
