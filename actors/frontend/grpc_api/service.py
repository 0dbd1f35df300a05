"""The methods of the gRPC service, over the same engine as the HTTP API.

A call belongs to the frontend that has its connection: if that dies the call fails with UNAVAILABLE, its sequences are
cancelled by the successor, and the client may call again. (Streams over HTTP go on.)
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import grpc

from actorserve.http.accounts import check_model_of
from actorserve.http.errors import ApiError
from actorserve.http.generation.choice import Choice
from actorserve.http.generation.fields.decoding import check_model
from actorserve.http.generation.idempotency_keys import client_of
from actorserve.http.generation.job import Engine, Job
from actorserve.http.pooling.answers import numbers
from actorserve.http.pooling.prepare import check_generates, check_task, embedding, inputs, pooling_of, work
from actorserve.http.settings import Settings, printable

from ...accounts.account import Account
from ...accounts.sent_key import is_among, key_in
from ...protocol.request import EMBED
from .requests import Answers, aborted_ids, embedded, embedding_of, prepared
from .schema import message_class

CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
LONGEST_ID = 128  # characters


class News:
    """What a job's listener tells: choices that have something new. Where the client is slow, it is merged there."""

    def __init__(self) -> None:
        self._touched: dict[int, Choice] = {}
        self._something = asyncio.Event()

    def update(self, choice: Choice) -> None:
        self._touched[choice.index] = choice
        self._something.set()

    def wake(self, _: object) -> None:
        """The job is over."""
        self._something.set()

    async def next(self) -> list[Choice]:
        await self._something.wait()
        self._something.clear()
        touched, self._touched = list(self._touched.values()), {}
        return touched


class InferenceService:
    """Generate, GenerateStream, Embed and Abort."""

    def __init__(self, engine: Engine, settings: Settings, count: Callable[[int], None] = lambda calls: None) -> None:
        """`count` is told of so many calls more that run, or less."""
        self._engine, self._settings, self._count = engine, settings, count
        self._running: dict[tuple[str, str], list[Job]] = {}  # by their clients and their requests' ids

    # --- methods -------------------------------------------------------------------------------------------------

    async def generate(self, request: Any, context: Any) -> Any:
        async with self._begun(request, context) as (job, answers):
            await asyncio.shield(job.done)
            return answers.whole()

    async def generate_stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async with self._begun(request, context) as (job, answers):
            news = News()
            job.listen(news)
            job.done.add_done_callback(news.wake)
            left = len(job.choices)
            while left:
                message = answers.news(await news.next())
                if message is not None:
                    left -= sum(bool(choice.finish_reason) for choice in message.choices)
                    yield message
                if job.done.done():
                    job.done.result()  # raises if it failed
            yield answers.usage()

    async def embed(self, request: Any, context: Any) -> Any:
        client, account = self._client(context)
        settings = self._settings.asked(request.model, lambda one: one.pooling is not None)
        spec = pooling_of(settings)
        body = embedding_of(request)
        check_task(spec, EMBED)
        model = check_model(body.model, settings.served, any_name=settings.any_model_name)
        request_id = named(request.request_id)
        prompts, _ = inputs(body, settings, spec)
        asked = work(body, settings, prompts, embedding(body, spec), (request_id, client, "texts"))
        job = Job(asked.prompts, [asked.params], asked.rendering)
        job.account = account
        check_model_of(account, model)
        async with self._running_as((client, request_id), job, settings.model):
            await asyncio.shield(job.done)
            return embedded(job, request_id, model, [numbers(choice) for choice in job.choices])

    async def abort(self, request: Any, context: Any) -> Any:
        """Only what runs at this frontend is known here; a client's own calls are, where they share its channel. Those
        of another key are nobody's.
        """
        client, _ = self._client(context)
        found = [name for name in aborted_ids(request) if (client, name) in self._running]
        for name in found:
            for job in self._running[client, name]:
                job.fail(ApiError(499, "The request was aborted."))
        return message_class("AbortResponse")(request_ids=found)

    # --- parts ---------------------------------------------------------------------------------------------------

    def _client(self, context: Any) -> tuple[str, Account | None]:
        """Whose key was sent, in the metadata; 401 if it is none of the server's."""
        if not self._settings.wants_keys:
            return "", None
        key = key_in(dict(context.invocation_metadata() or ())).encode(errors="replace")
        account = self._settings.accounts.find(key)
        if account is None and not is_among(key, map(str.encode, self._settings.api_keys)):
            raise ApiError(401, "Incorrect or missing API key: it is sent as metadata, authorization or x-api-key.")
        return client_of(key), account

    @asynccontextmanager
    async def _begun(self, request: Any, context: Any) -> AsyncIterator[tuple[Job, Answers]]:
        client, account = self._client(context)
        settings = self._settings.asked(request.model, lambda one: one.generates)
        check_generates(settings)
        request_id = named(request.request_id)
        given, asked, wants_ids = prepared(request, settings, request_id, client)
        model = check_model(given.model, settings.served, any_name=settings.any_model_name)
        job = asked.new_job()
        job.seed, job.account = secrets.randbits(64), account
        check_model_of(account, model)
        answers = Answers(job, request_id, model, f"{job.seed:016x}", wants_ids)
        async with self._running_as((client, request_id), job, settings.model):
            yield job, answers

    @asynccontextmanager
    async def _running_as(self, name: tuple[str, str], job: Job, model: int) -> AsyncIterator[None]:
        with self._counted():
            await self._submit(job, model)
            self._running.setdefault(name, []).append(job)
            try:
                yield
            finally:
                self._engine.release(job)
                jobs = self._running[name]
                jobs.remove(job)
                if not jobs:
                    del self._running[name]

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Also while the call waits for its account's turn: it is lost with this frontend as well."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    async def _submit(self, job: Job, model: int) -> None:
        engine = self._engine.of_model(model)
        if job.account is None:
            engine.submit(job)
            return
        async with engine.turn(job.account):
            engine.submit(job)


def named(given: str) -> str:
    """What all call the request: as its client does, of what can be printed."""
    return printable(given[:LONGEST_ID]) or uuid4().hex


async def answered(method: Callable[[Any, Any], Awaitable[Any]], request: Any, context: Any) -> Any:
    """A method of one answer, with its errors as gRPC has them."""
    try:
        return await method(request, context)
    except ApiError as error:
        await _fail(context, error)


async def streamed(method: Callable[[Any, Any], AsyncIterator[Any]], request: Any, context: Any) -> AsyncIterator[Any]:
    """The same of a stream."""
    try:
        async for message in method(request, context):
            yield message
    except ApiError as error:
        await _fail(context, error)


async def _fail(context: Any, error: ApiError) -> None:
    """The field that is wrong stands in the trailing metadata, and so does after how many seconds to try again."""
    told = (("param", error.param), ("retry-after", error.retry_after), ("code", error.code))
    metadata = tuple((name, printable(str(value))) for name, value in told if value is not None)
    code = CODES.get(error.status, grpc.StatusCode.INVALID_ARGUMENT if error.status < 500 else grpc.StatusCode.INTERNAL)
    if error.status == 499:
        code = grpc.StatusCode.ABORTED
    await context.abort(code, error.message, metadata)


def handlers(service: InferenceService) -> dict[str, Any]:
    """The service's methods by their names in the file."""
    own = {"Generate": service.generate, "Embed": service.embed, "Abort": service.abort}
    streams = {"GenerateStream": service.generate_stream}
    unary = {name: (grpc.unary_unary_rpc_method_handler, partial(answered, method)) for name, method in own.items()}
    return unary | {
        name: (grpc.unary_stream_rpc_method_handler, partial(streamed, method)) for name, method in streams.items()
    }
