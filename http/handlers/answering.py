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

from actorserve.actors.accounts.account import Account

from ..accounts import check_model_of
from ..errors import ApiError, bad_request, overloaded
from ..generation.choice import read_state
from ..generation.fields.decoding import check_model, engine_of
from ..generation.fields.sampling import NO_SEED
from ..generation.idempotency import StreamProgress, begun_in_turns, check_same, key_of, last_event
from ..generation.idempotency_keys import Key
from ..generation.job import Engine, Job
from ..generation.logprobs import ENTRIES, prompt_logprobs
from ..generation.prepare import PreparedRequest
from ..generation.trail import TRAIL, Origin, sampling_seed
from ..middleware.context import (
    ACCOUNT,
    ANSWER_SEED,
    CLIENT,
    GIVEN,
    GIVEN_AWAY,
    LIMITS,
    NOTED,
    OWNER,
    PATH,
    REPLAYED,
    REQUEST_ID,
    SEED,
    RequestContext,
    log_prompts,
)
from ..openai.schemas import ChatRequest, GenerationFields
from ..output.answer import Answer, AnswerOptions
from ..output.formats import MakeAnswerFormat
from ..output.turns import Turns
from ..output.writer import EVENTS, LongWriter, ProgressWriter
from ..settings import Settings
from ..transport.json_response import json_response
from ..transport.resume import record_of
from ..transport.sse import PROGRESS_S, EventStream

NO_SLOT = 0  # in a connection's record: slots are kept by keys
T = TypeVar("T")


def check_served(asked: str | None, settings: Settings) -> None:
    """404 for a model that is there, and cannot be served."""
    if asked is not None and (why := settings.catalog.unserved.get(asked)) is not None:
        raise ApiError(404, f"The model `{asked:.256}` cannot be served: {why}", "model", "model_not_found")


def model_for(request: web.Request, asked: str | None, settings: Settings) -> str:
    """The name of the model that is asked for. 404 for one that is not there, or not for this key."""
    check_served(asked, settings)
    model = check_model(asked, *settings.names)
    check_model_of(request.get(ACCOUNT), model)
    return model


class Answering:
    """Answers checked requests."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings

    async def want_adapter(self, request: web.Request, model: str | None) -> None:
        """If it is one that has to be loaded, it is; 404 for one that is not for this key, which loads nothing."""
        if model:
            check_model_of(request.get(ACCOUNT), model)
        await self.engine.want_adapter(model)

    def told_model(self, request: web.Request) -> str:
        """The model that a query asks of. 404 for one that is not there, or not for this key."""
        return model_for(request, request.query.get("model"), self.settings)

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
        key = await self.key(request, raw, owner)
        model = check_model(body.model, *self.settings.names, self.goes_on(request) or self.is_kept(key))
        job = asked.new_job()
        job.seeds_differ = ANSWER_SEED in request or body.seed in NO_SEED
        answer = self._new_answer(request, body, model, asked.wants)
        if key is not None:  # whoever asks again has the same answer, by whatever name
            answer.name = ""
        answer.times = partial(self.engine.times, job)
        if (given := request.get(GIVEN)) is not None:
            given.check(len(job.choices), bool(body.stream), self.settings.fingerprint)
            if body.mirostat and any(given.tokens):
                text = "what it draws next follows from how likely each token was, which the stream does not tell."
                raise bad_request(f"mirostat: {text}", "mirostat")
            job.given = given.tokens
        job.trails = SEED in request
        noted = request[NOTED] = RequestContext(request[REQUEST_ID], model, job)
        log_prompts(noted, self.settings.max_log_len)
        check_model_of(request.get(ACCOUNT), model)
        start = await self.begin(request, job, partial(self.submit, request, job, answer, key, bool(body.stream)))
        noted.answer_id = answer.id
        try:
            form = make(answer, job, start if key is not None else None)
            if not body.stream:
                await asyncio.shield(job.done)
                await self._tell_prompts(job, answer)
                if isinstance(form, LongWriter):
                    await form.write_long()
                return json_response(form.whole())
            keep_alive_s = self.settings.keep_alive_s if form.media_type == EVENTS else 0.0
            stream = EventStream(request, job, form, start, keep_alive_s, origin_of(request, answer, job))
            most_s = keep_alive_s
            if answer.wants.progress and isinstance(form, ProgressWriter):
                stream.tell_progress(partial(self._progress, job, form))
                most_s = min(most_s or PROGRESS_S, PROGRESS_S)
            return await stream.tell(partial(self._wait_for, job, answer, start, most_s))
        finally:
            release_behind(self.engine, job)

    async def _wait_for(
        self, job: Job, answer: Answer, start: StreamProgress, keep_alive_s: float, stream: EventStream
    ) -> None:
        """Until the stream may begin."""
        if answer.wants.prompt_text:  # which a response tells at its end
            await _has_started(job, start.on_wire, 0)
            await self._tell_prompts(job, answer)
        elif not (start.on_wire and start.begun):
            if not job.started.done():
                await stream.prepare()
            await _has_started(job, start.on_wire, keep_alive_s)

    def _progress(self, job: Job, writer: ProgressWriter) -> bytes:
        """How far its prompts have come, as events."""
        begun = self.engine.times(job).scheduled
        ns = time.monotonic_ns() - begun if begun else 0
        return b"".join(writer.progress(one, ns) for one in self.engine.progress(job))

    def goes_on(self, request: web.Request) -> bool:
        """Is it answered from what a predecessor has begun?"""
        record = record_of(request)
        before = None if record is None else record.predecessor
        return before is not None and (before.begun or before.refs == [NO_SLOT] or self.engine.has(before.refs))

    def is_kept(self, key: Key | None) -> bool:
        """Was it asked before, and is answered from the slots of then? Its adapter may be gone by now."""
        kept = self.engine.kept(key) if key is not None else None
        return kept is not None and key is not None and kept.digest == key.digest and self.engine.has(kept.refs)

    async def _tell_prompts(self, job: Job, answer: Answer) -> None:
        """The prompts' texts and logprobs, where they are wanted: they stand before all else."""
        first, turns = job.choices[:: len(job.params)], Turns(ENTRIES)
        if answer.wants.prompt_text:
            prompts = [one.prompt_ids for one in first]
            answer.prompt_texts = [await self.engine.detokenize(ids) if ids else "" for ids in prompts]
        if answer.wants.prompt_logprobs:
            made = [await prompt_logprobs(one.prompt_logprobs, one.prompt_tokens, turns) for one in first]
            answer.prompt_logprobs = made

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
        settings, name = self.settings, request[REQUEST_ID] if named_so else ""
        return Answer(*about, name, settings.fingerprint, told_fingerprint=settings.told_fingerprint)

    async def key(self, request: web.Request, raw: bytes, owner: int | None) -> Key | None:
        """The request's key; this frontend handles it. Another's request is given to that one, if nothing of its answer
        was given out."""
        if not self.settings.idempotency_window_s:
            return None
        key = key_of(
            request.headers,
            (request[CLIENT], request.get(PATH, request.path)),
            raw,
            self.engine.frontends,
            self.settings.idempotent_request_ids,
        )
        record = record_of(request)
        begun = record is not None and record.predecessor is not None and record.predecessor.begun
        if key is not None and owner is None and not (begun or self.engine.alone):
            await self.give_to(request, key.owner)
        return key

    async def give_to(self, request: web.Request, frontend: int) -> None:
        """Go on, if this is that frontend; otherwise it is given the connection, and this handler is cancelled."""
        if frontend == self.engine.index:
            return
        if self.engine.alone:
            raise overloaded(
                "With TLS a connection stays with its frontend, and another has to do this. Try a new one."
            )
        record = record_of(request)
        if record is None or frontend >= self.engine.frontends or not record.move(frontend):
            raise overloaded("There are too many connections for requests that belong together. Try again soon.")
        request[GIVEN_AWAY] = True
        await asyncio.Event().wait()
        raise AssertionError("a request that was given away is not answered here")

    async def begin(self, request: web.Request, job: Job, submit: Callable[[], T]) -> T:
        """`submit` the job, for the key that the request came with."""
        account = request.get(ACCOUNT)
        try:
            return await self.begin_for(account, job, submit)
        finally:
            if account is not None:
                request[LIMITS] = job.headers

    async def begin_for(self, account: Account | None, job: Job, submit: Callable[[], T]) -> T:
        """The same for this key."""
        job.account = account
        if account is None:
            return submit()
        async with self.engine.turn(account):
            return submit()

    def submit(self, request: web.Request, job: Job, answer: Answer, key: Key | None, streamed: bool) -> StreamProgress:
        """Begin to generate, or go on with what was begun; what has been given out of the answer."""
        pin(request, job, self.settings)
        record = record_of(request)
        before = record.predecessor if record else None
        goes_on = self.goes_on(request)
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
        if before and goes_on:
            refs, answer.seed, answer.created = before.refs, before.seed, before.created
            start.at_least(StreamProgress(before.states, before.first, before.closed, before.begun))
            request[REPLAYED] = before.replayed
        elif key and kept and given is None:
            check_same(key, kept)
            refs, answer.seed, answer.created = kept.refs, kept.seed, kept.created
            request[REPLAYED] = True
        elif key and given is None and (in_turns := begun_in_turns(key, self.engine)) is not None:
            check_same(key, in_turns)
        elif start.begun and given is None:
            raise ApiError(404, "The stream of this Idempotency-Key is over and forgotten.", "Last-Event-ID")
        for choice, state in zip(job.choices, start.states, strict=True):
            choice.skip(*read_state(state)[:2])
            choice.is_resumed = start.resumed
        job.seed = answer.seed
        self.engine.submit(job, refs)
        if key and (refs is None or kept is None or kept.refs != refs):  # two deaths may have left another answer's
            self.engine.keep(key, job, answer.seed, answer.created)
        if record and (before is None or refs is not before.refs):
            record.stream(job.refs, answer.seed, answer.created, request.get(REPLAYED, False))
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


def release_behind(engine: Engine, job: Job) -> None:
    """Let go of the job once this request's answer is handed to the kernel, which aiohttp does in the handler's task:
    until then a frontend's successor goes on with its slots, and needs nothing that may be gone by then.
    """
    task = asyncio.current_task()
    assert task is not None, "a handler runs in a task"
    task.add_done_callback(lambda _: engine.release(job))


def pin(request: web.Request, job: Job, settings: Settings) -> None:
    """It is computed by the engine that the request names, if it names one."""
    if (engine := engine_of(request.headers, settings.engines, settings.first_engine)) is not None:
        job.rendering = {**job.rendering, "engine": engine}


Body = TypeVar("Body", bound=GenerationFields)


def seeded(request: web.Request, body: Body) -> Body:
    """With a seed for its draws, if its client gave none and it is streamed: one that follows from that of the answer,
    so that whoever goes on with it, here or in another server, knows it.
    """
    given = request.get(GIVEN)
    if body.seed in NO_SEED and (body.stream or given is not None):
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
    return Origin(answer.seed, answer.created, seed, len(job.choices), answer.fingerprint, request.get(OWNER))


def follow(request: web.Request, seed: int, created: int) -> StreamProgress:
    """How far this request's client has read of an answer that is not its own; a successor is told whose it is."""
    record = record_of(request)
    before = None if record is None else record.predecessor
    if before is not None and before.begun:
        return StreamProgress(before.states, before.first, before.closed, before.begun)
    if record is not None:
        if before is not None:
            record.go_on()
        record.stream([NO_SLOT], seed, created)
    return StreamProgress.none(1)
