"""/v1/responses of several turns of the model, which may call tools of MCP servers, or have to sum up its input before
it answers: begun, gone on with, written.

What a request has begun is found again by its connection's record, or by its Idempotency-Key: by either the answer is
made of what is kept of it, and no tool is called a second time.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from actorserve.actors.accounts.account import Account

from ...accounts import check_model_of
from ...errors import ApiError
from ...generation.choice import read_state
from ...generation.fields.decoding import check_model
from ...generation.idempotency import StreamProgress, begun_in_turns, check_same
from ...generation.idempotency_keys import KEY_BYTES, Background, Key, StartRecord
from ...generation.job import Job
from ...generation.prepare import PreparedRequest
from ...middleware.context import ACCOUNT, NOTED, REPLAYED, REQUEST_ID, RequestContext, name_request
from ...openai.responses.answers import answer_to
from ...openai.responses.compaction import threshold_of
from ...openai.responses.mcp.background import RunningTools
from ...openai.responses.mcp.run import ToolRun
from ...openai.responses.mcp.run_format import ToolRunFormat
from ...openai.responses.mcp.tools import McpServer
from ...openai.responses.requests import renamed
from ...openai.responses.schemas import ResponsesRequest
from ...openai.responses.store import response_id
from ...openai.responses.stored import History
from ...transport.json_response import json_response
from ...transport.resume import Predecessor, record_of
from ...transport.sse import EventStream
from ..answering import NO_SLOT, pin
from ..generate import Generator


@dataclass(frozen=True)
class Start:
    """By what a response is known: one that begins, or that was begun."""

    digest: bytes  # of its request
    seed: int
    created: int
    key: Key | None = None
    before: Predecessor | None = None
    is_known: bool = False

    @property
    def given(self) -> int:
        """Events that the client has."""
        return read_state(self.before.states[0])[1] if self.before is not None else 0

    @property
    def progress(self) -> StreamProgress:
        if self.before is None:
            return StreamProgress.none(1)
        return StreamProgress(self.before.states, self.before.begun, self.before.closed, self.before.begun)


@dataclass(frozen=True)
class RequestFacts:
    """What the response's other handlers know of its request."""

    body: ResponsesRequest
    raw: bytes
    servers: list[McpServer]
    before: History
    ask: Callable[[ResponsesRequest, History], PreparedRequest]  # with what stands before its input
    keep: Callable[[str, dict[str, Any]], object]


class ToolResponses:
    """One frontend's."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._engine, self._settings = generator.engine, generator.settings

    async def create(self, request: web.Request, asked: RequestFacts) -> web.StreamResponse:
        """The answer, streamed or whole."""
        start = await self._start(request, asked)
        run = self.run(request, asked, start)
        request[NOTED] = RequestContext(request[REQUEST_ID], run.answer.model, run.job, run.answer.id)
        try:
            await run.open(start.digest, start.is_known)
            self._note(request, start)
            answer = await self._answer(request, asked.body, run, start)
            self._note_end(start)
            return answer
        except ApiError as error:
            raise renamed(error) from None
        finally:
            run.leave()

    def run(self, request: web.Request, asked: RequestFacts, start: Start) -> ToolRun:
        """One that is to be opened and run; ApiError where its model is not for this key."""
        run = self._run(asked, start, partial(self._submit, request))
        check_model_of(request.get(ACCOUNT), run.answer.model)
        return run

    async def begin(self, request: web.Request, asked: RequestFacts) -> RunningTools:
        """One in the background, whose first turn has begun."""
        start = Start(digest_of(asked.raw), secrets.randbits(64), int(time.time()))
        account = request.get(ACCOUNT)
        run = self._run(asked, start, partial(self._submit_for, account))
        check_model_of(account, run.answer.model)
        try:
            await run.open(start.digest, False)
        except ApiError as error:
            raise renamed(error) from None
        return RunningTools(run)

    def again(self, asked: RequestFacts, left: Background) -> RunningTools:
        """The same of a predecessor's."""
        start = Start(digest_of(asked.raw), left.seed, left.created, is_known=True)
        account = self._settings.accounts.named(left.account) if left.account else None
        run = self._run(asked, start, partial(self._submit_for, account))
        return RunningTools(run, start.digest, left.request_id)

    def _run(self, asked: RequestFacts, start: Start, submit: Callable[[Job], Awaitable[None]]) -> ToolRun:
        key = response_id(self._engine.index, start.seed, start.created)
        model = check_model(asked.body.model, *self._settings.names, start.is_known)
        answer = answer_to(asked.body, key, model, start.created, self._settings.sampling_defaults)
        before = asked.before.without(key)
        return ToolRun(
            *(self._engine, self._settings.tools, asked.body, asked.servers, answer, before),
            lambda turn: asked.ask(turn, before),
            submit,
            self._settings.max_tool_calls,
            partial(asked.keep, key),
            threshold_of(asked.body, self._settings.max_model_len),
        )

    def is_kept(self, key: Key | None) -> bool:
        """Was it asked before, by this Idempotency-Key?"""
        found = begun_in_turns(key, self._engine) if key is not None else None
        return found is not None and key is not None and found.digest == key.digest

    async def _start(self, request: web.Request, asked: RequestFacts) -> Start:
        name_request(request, asked.body.request_id)
        owner = None if asked.body.conversation is None else self._engine.index  # which has it
        key = await self._generator.key(request, asked.raw, owner)
        record = record_of(request)
        before = record.predecessor if record else None
        if record and before and not before.begun:
            record.go_on()
        digest = digest_of(asked.raw)
        if before is not None:
            request[REPLAYED] = before.replayed
            return Start(digest, before.seed, before.created, key, before, True)
        if key is not None and (kept := self._engine.kept(key)) is not None:
            check_same(key, kept)
        found = begun_in_turns(key, self._engine) if key is not None else None
        if key is None or found is None:
            return Start(digest, secrets.randbits(64), int(time.time()), key)
        check_same(key, found)
        request[REPLAYED] = True
        return Start(digest, found.seed, found.created, key, None, True)

    def _note(self, request: web.Request, start: Start) -> None:
        """From now on others find it."""
        if start.key is not None and not start.is_known:
            packed = msgspec.msgpack.encode(StartRecord(start.digest, start.seed, start.created))
            self._engine.put(start.key.name, packed)
        record = record_of(request)
        if record is not None and start.before is None:
            record.stream([NO_SLOT], start.seed, start.created, request.get(REPLAYED, False))

    def _note_end(self, start: Start) -> None:
        """From now on the key's time counts. A frontend that dies before leaves it to who asks again."""
        found = begun_in_turns(start.key, self._engine) if start.key is not None else None
        if start.key is not None and found is not None and not found.until:
            until = time.monotonic() + self._settings.idempotency_window_s
            self._engine.put(start.key.name, msgspec.msgpack.encode(msgspec.structs.replace(found, until=until)))

    async def _answer(
        self, request: web.Request, body: ResponsesRequest, run: ToolRun, start: Start
    ) -> web.StreamResponse:
        task = asyncio.get_running_loop().create_task(run.run())
        try:
            if not body.stream:
                await asyncio.shield(run.job.done)
                return json_response(run.ended)
            form = ToolRunFormat(run, start.given)
            return await EventStream(request, run.job, form, start.progress, self._settings.keep_alive_s).tell()
        finally:
            task.cancel()

    async def _submit(self, request: web.Request, job: Job) -> None:
        pin(request, job, self._settings)
        await self._generator.begin(request, job, partial(self._engine.submit, job))

    async def _submit_for(self, account: Account | None, job: Job) -> None:
        """A turn of one whose request is answered by now."""
        await self._generator.begin_for(account, job, partial(self._engine.submit, job))


def digest_of(raw: bytes) -> bytes:
    """By which a request is known again."""
    return hashlib.sha256(raw).digest()[:KEY_BYTES]
