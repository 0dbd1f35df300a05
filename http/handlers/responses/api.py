"""/v1/responses: made, streamed, kept, fetched, cancelled, deleted; and how many tokens one would begin with."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from aiohttp import web

from ...accounts import check_model_of
from ...errors import ApiError, bad_request
from ...generation.choice import read_state
from ...generation.fields.decoding import check_model, decode_query
from ...generation.fields.unsupported import read
from ...generation.idempotency import StreamProgress
from ...generation.idempotency_keys import Background
from ...generation.job import Job
from ...generation.prepare import PreparedRequest
from ...middleware.context import ACCOUNT, CLIENT, GIVEN, NOTED, OWNER, REQUEST_ID, RequestContext, name_request
from ...openai.responses.answers import RawMessages, answer_to, check_raw
from ...openai.responses.compaction import may_compact
from ...openai.responses.mcp.tools import McpServer, mcp_servers
from ...openai.responses.references import names_items
from ...openai.responses.requests import can_move, input_items, renamed
from ...openai.responses.schemas import InputItemsQuery, ResponsesRequest
from ...openai.responses.store import ResponseStore, RunningAnswer, RunningResponse, owner_of, response_id, seed_of
from ...openai.responses.stored import History, StoredResponse, not_found, page_of
from ...openai.schemas import ChatRequest
from ...output import answer as answers
from ...output.formats import ResponsesFormat
from ...output.writer import AnswerFormat
from ...transport.json_response import json_response
from ...transport.resume import record_of
from ...transport.sse import EventStream
from ..answering import follow, pin
from ..generate import Generator
from .requests import ResponseRequests
from .tools import ToolResponses


class ResponsesApi:
    """The handlers."""

    def __init__(self, generator: Generator, first: ResponsesApi | None = None) -> None:
        """`first`: of the server's first model, which keeps the responses of all."""
        self.generator = generator
        self.engine, self.settings = generator.engine, generator.settings
        self.keeping: ResponseStore = ResponseStore(self.engine) if first is None else first.keeping
        self.requests = ResponseRequests(self.settings, self.keeping)
        self.tools = ToolResponses(generator)

    def go_on(self, find: Callable[[Background], ResponsesApi]) -> None:
        """What a predecessor had in the background, by whom its model belongs to."""
        self.keeping.go_on(lambda left, client: find(left)._background_again(left, client))

    def going_on(self) -> list[RequestContext]:
        """What runs in the background and was not begun here, once this is made."""
        return [
            RequestContext(one.request_id, one.answer.model, one.job, name, background=True)
            for name, one in self.keeping.running.items()
        ]

    # --- making ----------------------------------------------------------------------------------------------------

    async def create(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/responses."""
        body = read(ResponsesRequest, raw)
        servers = mcp_servers(body, self.settings)
        in_turns = bool(servers) or may_compact(body)
        check_raw(body, in_turns or bool(body.background))
        given, moves = request.get(GIVEN), can_move(body, in_turns)
        if given is not None and not moves:
            raise bad_request("body: one in the background, with tools of servers or with tokens told stays.", "body")
        begun_by = None if given is None else given.origin.owner
        keeper = self.engine.index if begun_by is None else begun_by
        keeps = keeper == self.engine.index or (keeper < self.engine.frontends and not self.engine.alone)
        if keeps:
            await self.generator.give_to(request, keeper)
        begun_before = await self._has_begun(request, raw, body, in_turns, None if begun_by is None else keeper)
        await self.generator.want_adapter(request, body.model)
        if body.background and (begun := self._begun_before(request)) is not None:
            return await self._in_background(request, body, begun)
        body, before = self.requests.found(body, request[CLIENT], begun_before)
        if in_turns:
            return await self._in_turns(request, raw, body, servers, before)
        who, seeds = (name_request(request, body.request_id), request[CLIENT]), request if moves else None
        chat, asked = self.requests.ask(body, *who, seeds, before)
        model = check_model(chat.model, *self.settings.names, True)  # who comes new is checked where it begins
        if body.background:
            check_model(chat.model, *self.settings.names)
            return await self._begin(request, raw, body, asked, model)

        request[OWNER] = keeper

        def form(answer: answers.Answer, job: Job, progress: StreamProgress | None) -> AnswerFormat:
            key = response_id(keeper, answer.seed, answer.created)
            own = answer_to(body, key, model, answer.created, self.settings.sampling_defaults)
            request[NOTED].answer_id = own.id
            if body.enable_response_messages:
                own = replace(own, raw=RawMessages(lambda: answer.prompt_texts[0]))
            at_end = (lambda ended: self.requests.keep(body, key, ended, request[CLIENT])) if keeps else None
            return ResponsesFormat(own, job, at_end=at_end)

        try:
            owner = keeper if begun_by is not None or body.conversation is not None else None
            return await self.generator.answer(request, raw, chat, asked, form, owner if keeps else None)
        except ApiError as error:
            raise renamed(error) from None

    async def _has_begun(
        self, request: web.Request, raw: bytes, body: ResponsesRequest, in_turns: bool, owner: int | None
    ) -> bool:
        """Is its answer, or a part of it, there, whatever it was to go on from is by now? The frontend that has its
        conversation adds to that what this response says, and nobody else. `owner`: see Answering.key.
        """
        conversations, name = self.keeping.conversations, body.conversation_id
        if name is not None:
            await self.generator.give_to(request, conversations.owner(name, "conversation"))
            owner = self.engine.index
        elif body.previous_response_id is None and not names_items(body):
            return False
        key = await self.generator.key(request, raw, owner)
        is_kept = self.tools.is_kept(key) if in_turns else self.generator.is_kept(key)
        begun = is_kept or self.generator.goes_on(request)
        if name is not None and not begun:
            conversations.check_room(name, body, request[CLIENT])
        return begun

    async def _in_turns(
        self, request: web.Request, raw: bytes, body: ResponsesRequest, servers: list[McpServer], before: History
    ) -> web.StreamResponse:
        """One whose model may call tools of these servers, or may have to sum up its input."""
        who = name_request(request, body.request_id), request[CLIENT]
        asked = self.requests.with_tools(raw, body, servers, who, before)
        if not body.background:
            return await self.tools.create(request, asked)
        self.keeping.check_room()
        running = await self.tools.begin(request, asked)
        try:
            self.keeping.check_room()  # others have begun while its servers were asked
        except ApiError:
            running.leave(self.engine)
            raise
        return await self._keep_running(request, raw, body, running)

    async def count(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/responses/input_tokens: how many tokens its prompt has."""
        body, before = self.requests.found(read(ResponsesRequest, raw), request[CLIENT])
        await self.generator.want_adapter(request, body.model)
        chat, asked = self.requests.ask(body, request[REQUEST_ID], request[CLIENT], before=before)
        check_model_of(request.get(ACCOUNT), check_model(chat.model, *self.settings.names))
        try:
            tokens, _ = await self.engine.tokenize(asked.prompts[0], False)
        except ApiError as error:
            raise renamed(error) from None
        return json_response({"object": "response.input_tokens", "input_tokens": len(tokens)})

    def chat_to_render(self, request: web.Request, raw: bytes) -> ChatRequest:
        """The chat request whose prompt a response's is."""
        body, before = self.requests.found(read(ResponsesRequest, raw), request[CLIENT])
        if servers := mcp_servers(body, self.settings):
            raise bad_request(f"{servers[0].path}: tools of MCP servers cannot be rendered.", servers[0].path)
        return self.requests.ask(body, name_request(request, body.request_id), request[CLIENT], before=before)[0]

    # --- in the background -----------------------------------------------------------------------------------------

    async def _begin(
        self, request: web.Request, raw: bytes, body: ResponsesRequest, asked: PreparedRequest, model: str
    ) -> web.StreamResponse:
        seed, created = secrets.randbits(64), int(time.time())
        key = response_id(self.engine.index, seed, created)
        answer = answer_to(body, key, model, created, self.settings.sampling_defaults)
        job = asked.new_job()
        job.seed = seed
        pin(request, job, self.settings)
        check_model_of(request.get(ACCOUNT), model)
        await self.generator.begin(request, job, partial(self.engine.submit, job))
        return await self._keep_running(request, raw, body, RunningAnswer(asked, answer, job))

    async def _keep_running(
        self, request: web.Request, raw: bytes, body: ResponsesRequest, running: RunningResponse
    ) -> web.StreamResponse:
        """It has begun, and goes on when this request is answered."""
        answer, account, client = running.answer, request.get(ACCOUNT), request[CLIENT]
        request[NOTED] = RequestContext(request[REQUEST_ID], answer.model, running.job, answer.id, background=True)
        seed = seed_of(answer.key)
        left = Background(
            answer.id, raw, seed, answer.created, "" if account is None else account.name, request[REQUEST_ID]
        )
        stored = StoredResponse(answer.response("in_progress"), input_items(body, answer.key), client)
        self.keeping.begin(left, running, stored)
        return await self._in_background(request, body, running)

    def _begun_before(self, request: web.Request) -> RunningResponse | None:
        """What a predecessor has begun for this request."""
        record = record_of(request)
        before = None if record is None else record.predecessor
        if before is None:
            return None
        running = self.keeping.running.get(f"resp_{response_id(self.engine.index, before.seed, before.created)}")
        if running is None:
            raise ApiError(500, "What was begun of this response is lost.")
        request[NOTED] = RequestContext(request[REQUEST_ID], running.answer.model, running.job, running.answer.id)
        return running

    async def _in_background(
        self, request: web.Request, body: ResponsesRequest, running: RunningResponse
    ) -> web.StreamResponse:
        """What its client is told at first, or its events."""
        if body.stream:
            return await self._events(request, running, -1)
        follow(request, seed_of(running.answer.key), running.answer.created)
        return json_response(running.answer.response("queued"))

    def _background_again(self, left: Background, client: str) -> RunningResponse:
        """What a predecessor had begun, from its request."""
        body, before = self.requests.found(read(ResponsesRequest, left.raw), client, True)
        servers = mcp_servers(body, self.settings)
        key = response_id(self.engine.index, left.seed, left.created)
        if servers or may_compact(body):
            who = left.request_id, client
            return self.tools.again(self.requests.with_tools(left.raw, body, servers, who, before), left)
        chat, asked = self.requests.ask(body, left.id, client, before=before.without(key))
        model = check_model(chat.model, *self.settings.names, True)
        answer = answer_to(body, key, model, left.created, self.settings.sampling_defaults)
        return self.keeping.begin_again(left, self.engine, asked, answer)

    async def _events(self, request: web.Request, running: RunningResponse, after: int) -> web.StreamResponse:
        """Its events from the first or behind one on."""
        start = follow(request, seed_of(running.answer.key), running.answer.created)
        at_end = partial(self.keeping.end, running.answer.id)
        job, form = running.read(self.engine, max(after, read_state(start.states[0])[1] - 1), at_end)
        try:
            return await EventStream(request, job, form, start, self.settings.keep_alive_s).tell()
        finally:
            running.stop_reading(self.engine, job)

    # --- kept ------------------------------------------------------------------------------------------------------

    async def _own(self, request: web.Request) -> str:
        """The id in the path; this frontend keeps it, and has what is running of it."""
        name = request.match_info["id"]
        owner = owner_of(name)
        if owner >= self.engine.frontends:
            raise not_found(name)
        await self.generator.give_to(request, owner)
        return name

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/responses/{id}, with ?stream=true&starting_after=N."""
        if request.query.get("stream", "false").lower() not in ("true", "1"):
            return json_response(self.keeping.get(request.match_info["id"], request[CLIENT]).response)
        name = await self._own(request)
        stored = self.keeping.get(name, request[CLIENT])
        after = request.query.get("starting_after", "-1")
        if not after.removeprefix("-").isdecimal() or len(after) > 9:
            raise bad_request("starting_after must be the number of an event.", "starting_after")
        running = self.keeping.running.get(name)
        if running is None:
            if stored.background:
                raise ApiError(404, "The events of this response are no longer kept.", "stream")
            raise bad_request("Only responses that were made in the background can be streamed again.", "stream")
        return await self._events(request, running, int(after))

    async def input(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/responses/{id}/input_items."""
        wanted = decode_query(InputItemsQuery, request.query)
        return json_response(page_of(self.keeping.get(request.match_info["id"], request[CLIENT]).input, wanted))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/responses/{id}/cancel."""
        return json_response(self.keeping.cancel(await self._own(request), request[CLIENT]).response)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """DELETE /v1/responses/{id}."""
        name = await self._own(request)
        self.keeping.delete(name, request[CLIENT])
        return json_response({"id": name, "object": "response", "deleted": True})
