"""From a checked request to its answer: begun here, or gone on with where somebody else has begun it.

Somebody else is a frontend that died with the request in hand, or an earlier request with the same key.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
from aiohttp import web

from actorserve.actors.protocol.messages import TextPrompt, TokenPrompt

from ..accounts import check_model_of
from ..anthropic.requests import named, omits_thinking, renamed
from ..anthropic.requests import to_chat as messages_to_chat
from ..anthropic.schemas import MessagesRequest
from ..errors import ApiError, bad_request, overloaded
from ..generation.adapter import chat_request
from ..generation.beam_search import BeamSearch, check_beams
from ..generation.choice import read_state
from ..generation.fields.decoding import check_model, engine_of
from ..generation.fields.sampling import max_tokens_of
from ..generation.fields.unsupported import read
from ..generation.idempotency import StreamProgress, check_same, key_of, last_event
from ..generation.idempotency_keys import Key
from ..generation.job import Engine, Job
from ..generation.prepare import PreparedRequest, ask_chat, ask_chats, ask_completion
from ..generation.trail import TRAIL, Origin, sampling_seed
from ..middleware.context import (
    ACCOUNT,
    ANSWER_SEED,
    CLIENT,
    GIVEN,
    GIVEN_AWAY,
    LIMITS,
    NOTED,
    PATH,
    REPLAYED,
    REQUEST_ID,
    SEED,
    RequestContext,
    log_prompts,
    name_request,
)
from ..openai.chat import ChatAnswer
from ..openai.completions import CompletionAnswer
from ..openai.schemas import ChatBatchRequest, ChatRequest, CompletionRequest, GenerateRequest, GenerationFields
from ..openai.token_ids import TokensFormat, completion_of
from ..output.answer import EVENTS, Answer, AnswerOptions
from ..output.formats import AnswerFormat, MakeAnswerFormat, MessagesFormat
from ..settings import Settings
from ..transport.json_response import json_response
from ..transport.resume import record_of
from ..transport.sse import EventStream

T = TypeVar("T")
BEAMS = "use_beam_search"


class Generator:
    """Answers requests that generate."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings

    async def chat(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body = seeded(request, read(ChatRequest, raw))
        check_beams(body)
        await self.engine.want_adapter(body.model)
        asked = ask_chat(body, self.settings, name_request(request, body.request_id), request[CLIENT])
        if body.use_beam_search:
            return await self._beams(request, body, asked, ChatAnswer)
        return await self.answer(request, raw, body, asked, ChatAnswer)

    async def chats(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/chat/completions/batch."""
        body = seeded(request, read(ChatBatchRequest, raw))
        if body.use_beam_search:
            raise bad_request("use_beam_search does not go with several conversations.", "use_beam_search")
        asked = ask_chats(body, self.settings, name_request(request, body.request_id), request[CLIENT])
        return await self.answer(request, raw, body, asked, ChatAnswer)

    async def completions(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/completions."""
        body = seeded(request, read(CompletionRequest, raw))
        check_beams(body)
        await self.engine.want_adapter(body.model)
        asked = ask_completion(body, self.settings, name_request(request, body.request_id), request[CLIENT])
        if body.use_beam_search:
            return await self._beams(request, body, asked, CompletionAnswer)
        for prompt in asked.echoed:
            text = prompt.text if isinstance(prompt, TextPrompt) else ""
            if isinstance(prompt, TokenPrompt):
                text = await self.engine.detokenize(prompt.tokens)
            if asked.wants.echo is not None:
                asked.wants.echo.append(text)
        return await self.answer(request, raw, body, asked, CompletionAnswer)

    async def generate(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /inference/v1/generate."""
        body = read(GenerateRequest, raw)
        given = seeded(request, completion_of(body))
        await self.engine.want_adapter(given.model)
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
        search = BeamSearch(self.engine, body, asked, self.settings.end_tokens)
        wanted, job = body.n or 1, Job(asked.prompts, asked.params[: body.n or 1], {}, asked.make_parser)
        for index, prompt in enumerate(asked.prompts):
            tokens, beams = await search.run(prompt, max_tokens_of(body), self.settings.max_model_len)
            for choice, beam in zip(job.choices[index * wanted : (index + 1) * wanted], beams, strict=False):
                job.rendered(choice.index, len(tokens))
                choice.text.append(await self.engine.detokenize(beam.tokens, True) if beam.tokens else "")
                choice.tokens, choice.finish_reason = len(beam.tokens), beam.reason
        if account is not None:
            self.engine.charge_alone(account, job.prompt_tokens, job.completion_tokens)
        answer = self._new_answer(request, body, model, AnswerOptions(role=asked.wants.role))
        request[NOTED] = RequestContext(request[REQUEST_ID], model, job, answer.id)
        return json_response(make(answer, job, None).whole())

    async def messages(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/messages."""
        body = read(MessagesRequest, raw)
        chat = messages_to_chat(body)
        if self.settings.reasoning_parser is None:
            chat.pop("thinking_token_budget", None)  # a model that does not think keeps to any budget
        try:
            asked_for = seeded(request, chat_request(chat))
            request_id = name_request(request, asked_for.request_id)
            await self.engine.want_adapter(asked_for.model)
            asked = ask_chat(asked_for, self.settings, request_id, request[CLIENT])
        except ApiError as error:
            raise renamed(error) from None
        asked.rendering.update(max_tokens=None, cap=body.max_tokens)  # more than the model's length is no error here
        asked.rendering["constrained_by"] = named(asked.rendering["constrained_by"])

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> AnswerFormat:
            made = MessagesFormat(answer, job, omits_thinking(body), body.max_tokens)
            request[NOTED].answer_id = made.answer.id
            return made

        return await self.answer(request, raw, asked_for, asked, form)

    async def answer(
        self,
        request: web.Request,
        raw: bytes,
        body: GenerationFields,
        asked: PreparedRequest,
        make: MakeAnswerFormat,
        owner: int | None = None,
    ) -> web.StreamResponse:
        """The answer to a checked request, streamed or whole. `owner`: the frontend that must make it."""
        record = record_of(request)
        going_on = record is not None and record.predecessor is not None
        model = check_model(body.model, *self.settings.names, going_on)
        key = await self._key(request, raw, owner)
        job = new_job(asked)
        answer = self._new_answer(request, body, model, asked.wants)
        if key is not None:  # whoever asks again has the same answer, by whatever name
            answer.name = ""
        answer.times = partial(self.engine.times, job)
        if (given := request.get(GIVEN)) is not None:
            given.check(len(job.choices), bool(body.stream))
            job.given = given.tokens
        job.trails = SEED in request
        noted = request[NOTED] = RequestContext(request[REQUEST_ID], model, job)
        log_prompts(noted, self.settings.max_log_len)
        check_model_of(request.get(ACCOUNT), model)
        start = await self.begin(request, job, partial(self.submit, request, job, answer, key, bool(body.stream)))
        noted.answer_id = answer.id
        form = make(answer, job, start if key is not None else None)
        try:
            if not body.stream:
                await asyncio.shield(job.done)
                await self._tell_prompts(job, answer)
                return json_response(form.whole())
            keep_alive_s = self.settings.keep_alive_s if form.media_type == EVENTS else 0.0
            if not (start.on_wire and start.begun):
                await _has_started(job, start.on_wire, 0 if asked.wants.prompt_text else keep_alive_s)
                await self._tell_prompts(job, answer)
            return await stream_answer(request, job, form, start, keep_alive_s, origin_of(request, answer, job))
        finally:
            self.engine.release(job)

    async def _tell_prompts(self, job: Job, answer: Answer) -> None:
        """The prompts' texts, where they are wanted: they stand before all else."""
        if answer.wants.prompt_text:
            prompts = [choice.prompt_ids for choice in job.choices[:: len(job.params)]]
            answer.prompt_texts = [await self.engine.detokenize(ids) if ids else "" for ids in prompts]

    def _new_answer(self, request: web.Request, body: GenerationFields, model: str, wants: AnswerOptions) -> Answer:
        """Its id is made of what the client calls the request, if it does."""
        named_so = body.request_id or request.headers.get("X-Request-Id")
        about = (
            model,
            isinstance(body, ChatRequest),
            request.get(ANSWER_SEED) or secrets.randbits(64),
            int(time.time()),
            wants,
        )
        return Answer(*about, request[REQUEST_ID] if named_so else "", self.settings.fingerprint)

    async def _key(self, request: web.Request, raw: bytes, owner: int | None) -> Key | None:
        """The request's key; this frontend handles it. Another's request is given to that one."""
        if not self.settings.idempotency:
            return None
        key = key_of(
            request.headers,
            (request[CLIENT], request.get(PATH, request.path)),
            raw,
            self.engine.frontends,
            self.settings.idempotent_request_ids,
        )
        if key is not None and owner is None:
            await self.give_to(request, key.owner)
        return key

    async def give_to(self, request: web.Request, frontend: int) -> None:
        """Go on, if this is that frontend; otherwise it is given the connection, and this handler is cancelled."""
        if frontend == self.engine.index:
            return
        record = record_of(request)
        if record is None or frontend >= self.engine.frontends or not record.move(frontend):
            raise overloaded("There are too many connections for requests that belong together. Try again soon.")
        request[GIVEN_AWAY] = True
        await asyncio.Event().wait()
        raise AssertionError("a request that was given away is not answered here")

    async def begin(self, request: web.Request, job: Job, submit: Callable[[], T]) -> T:
        """`submit` the job, for the key that the request came with."""
        job.account = account = request.get(ACCOUNT)
        if account is None:
            return submit()
        try:
            async with self.engine.turn(account):
                return submit()
        finally:
            request[LIMITS] = job.headers

    def submit(self, request: web.Request, job: Job, answer: Answer, key: Key | None, streamed: bool) -> StreamProgress:
        """Begin to generate, or go on with what was begun; what has been given out of the answer."""
        pin(request, job, self.settings)
        record = record_of(request)
        before = record.predecessor if record else None
        behind = last_event(request.headers, len(job.choices)) if streamed else None
        start = behind or StreamProgress.none(len(job.choices))
        if (given := request.get(GIVEN)) is not None:
            start = given.progress
            answer.seed, answer.created = given.origin.seed, given.origin.created
            answer.fingerprint = given.origin.fingerprint
        kept = self.engine.kept(key) if key else None
        if record and before and not before.begun:
            record.go_on()
        refs = None
        if before and (before.begun or self.engine.has(before.refs)):
            refs, answer.seed, answer.created = before.refs, before.seed, before.created
            start.at_least(StreamProgress(before.states, before.first, before.closed, before.begun))
        elif key and kept and given is None:
            check_same(key, kept)
            refs, answer.seed, answer.created = kept.refs, kept.seed, kept.created
            request[REPLAYED] = True
        elif start.begun and given is None:
            raise ApiError(404, "The stream of this Idempotency-Key is over and forgotten.", "Last-Event-ID")
        for choice, state in zip(job.choices, start.states, strict=True):
            choice.skip(*read_state(state)[:2])
        job.seed = answer.seed
        self.engine.submit(job, refs)
        if key and refs is None:
            self.engine.keep(key, job, answer.seed, answer.created)
        if record and (before is None or refs is not before.refs):
            record.stream(job.refs, answer.seed, answer.created)
        return start


async def _has_started(job: Job, on_wire: bool, most_s: float) -> None:
    """Wait until something has come, or for so long, if that is not 0: then the head goes out, and an error can be told
    in the stream alone, as where it is out.
    """
    try:
        await asyncio.wait_for(asyncio.shield(job.started), most_s or None)
    except TimeoutError:
        return
    except ApiError:
        if not on_wire:
            raise


def pin(request: web.Request, job: Job, settings: Settings) -> None:
    """It is computed by the engine that the request names, if it names one."""
    if (engine := engine_of(request.headers, settings.engines)) is not None:
        job.rendering = {**job.rendering, "engine": engine}


Body = TypeVar("Body", bound=GenerationFields)


def seeded(request: web.Request, body: Body) -> Body:
    """With a seed for its draws, if its client gave none and it is streamed: one that follows from that of the answer,
    so that whoever goes on with it, here or in another server, knows it.
    """
    given = request.get(GIVEN)
    if body.seed is None and (body.stream or given is not None):
        seed = request[ANSWER_SEED] = secrets.randbits(64)
        body = msgspec.structs.replace(body, seed=sampling_seed(seed) if given is None else given.origin.sampling)
    if body.stream and body.seed is not None and request.headers.get(TRAIL) == "1":
        request[SEED] = body.seed
    return body


def origin_of(request: web.Request, answer: Answer, job: Job) -> Origin | None:
    """What another server needs to go on with this answer, if that is wanted."""
    if SEED not in request:
        return None
    seed = request[SEED]
    if ANSWER_SEED in request and GIVEN not in request:  # the answer's own may be that of an earlier life of it
        seed = sampling_seed(answer.seed)
    return Origin(answer.seed, answer.created, seed, len(job.choices), answer.fingerprint)


def new_job(asked: PreparedRequest) -> Job:
    """One that has not begun."""
    return Job(asked.prompts, asked.params, asked.rendering, asked.make_parser, asked.wants_ids)


async def stream_answer(
    request: web.Request,
    job: Job,
    form: AnswerFormat,
    start: StreamProgress,
    keep_alive_s: float,
    origin: Origin | None = None,
) -> web.StreamResponse:
    """All of a stream."""
    stream = EventStream(request, job, form, start, keep_alive_s, origin)
    try:
        response = await stream.begin()
        await stream.end(response)
        return response
    finally:
        stream.close()
