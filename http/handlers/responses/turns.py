"""What is generated for a message of a connection: a response, begun here or gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from ...accounts import check_model_of
from ...errors import ApiError, bad_request
from ...generation.choice import Choice, read_state
from ...generation.fields.decoding import check_model
from ...generation.fields.unsupported import read
from ...generation.job import Job
from ...middleware.context import ACCOUNT, CLIENT
from ...openai.responses.answers import answer_to, check_raw
from ...openai.responses.compaction import may_compact
from ...openai.responses.mcp.run_format import ToolRunFormat
from ...openai.responses.mcp.tools import McpServer, mcp_servers
from ...openai.responses.references import resolved
from ...openai.responses.requests import renamed
from ...openai.responses.schemas import Object, ResponsesRequest
from ...openai.responses.socket import (
    ActiveResponse,
    SocketMessage,
    SocketResponses,
    SocketSession,
    read_message,
    streamed,
    unkept,
)
from ...openai.responses.store import response_id
from ...openai.responses.stored import History
from ...output.formats import ResponsesFormat
from ...output.writer import AnswerFormat
from ...pooling.prepare import check_generates
from ..answering import NO_SLOT, pin
from ..sockets import account_of
from .api import ResponsesApi
from .tools import Start, digest_of

Find = Callable[[bytes], ResponsesApi]  # whose model a body asks for


@dataclass
class Turn:
    """One response that is under way."""

    job: Job
    form: AnswerFormat
    lane: str | None
    leave: Callable[[], None]
    refs: list[int]
    id: str  # of the response
    is_told: bool = False  # its first events are

    def take(self, choice: Choice) -> bytes:
        """The events that are new."""
        first = b"" if self.is_told else self.form.first(choice)
        events = first + self.form.update(choice)
        self.is_told = True
        return events


class TurnMaker:
    """Of one connection."""

    def __init__(self, request: web.Request, session: SocketSession, find: Find) -> None:
        self._request, self._session, self._find = request, session, find

    async def make(self, active: ActiveResponse, state: int | None = None) -> Turn:
        """ApiError where it cannot be. `state`: how far its client is in one that a predecessor has begun."""
        message, api = read_message(active.raw), self._find(active.raw)
        check_generates(api.settings)
        account = account_of(self._request, api.settings)
        if account is not None:
            self._request[ACCOUNT] = account
        kept = SocketResponses(self._session, api.keeping)
        body = resolved(read(ResponsesRequest, active.raw), kept, self._request[CLIENT])
        if body.conversation is not None:
            text = "conversation is not supported over a WebSocket: previous_response_id goes on from a response."
            raise bad_request(text, "conversation")
        check_raw(body, True)
        await api.generator.want_adapter(self._request, body.model)
        earlier = api.requests.earlier(body, self._request[CLIENT], kept)  # at its end it may be forgotten
        making = _Making(self._request, self._session, api, message, body, active, earlier)
        servers = mcp_servers(body, api.settings)
        if servers and message.prepares:
            raise bad_request("generate: false does not go with tools that are called here.", "generate")
        if servers or (may_compact(body) and not message.prepares):
            return await making.in_turns(servers, state)
        return await making.plain(state)


@dataclass
class _Making:
    request: web.Request
    session: SocketSession
    api: ResponsesApi
    message: SocketMessage
    body: ResponsesRequest
    active: ActiveResponse
    earlier: list[Object]

    @property
    def key(self) -> str:
        """Of the response's id."""
        return response_id(self.api.engine.index, self.active.seed, self.active.created)

    def who(self) -> tuple[str, str]:
        """The request's id, and its client."""
        return self.body.request_id or f"resp_{self.key}", self.request[CLIENT]

    async def plain(self, state: int | None) -> Turn:
        """One whose model calls nothing here."""
        api, active = self.api, self.active
        asked_body = streamed(self.body, self.message.prepares)
        chat, asked = api.requests.ask(asked_body, *self.who(), before=History(self.earlier))
        model = check_model(chat.model, *api.settings.names, state is not None)
        check_model_of(self.request.get(ACCOUNT), model)
        answer = answer_to(self.body, self.key, model, active.created, api.settings.sampling_defaults)
        job = asked.new_job()
        job.seed = active.seed
        pin(self.request, job, api.settings)
        form = ResponsesFormat(answer, job, at_end=partial(self._keep, self.key), nothing=self.message.prepares)
        given = 0
        if state is not None:
            characters, given, _ = read_state(state)
            job.choices[0].skip(characters, given)
        refs = active.refs if state is not None and api.engine.has(active.refs) else None
        try:
            await api.generator.begin(self.request, job, partial(api.engine.submit, job, refs))
        except ApiError as error:
            raise renamed(error) from None
        leave = partial(api.engine.release, job)
        return Turn(job, form, self.message.stream_id, leave, job.refs, f"resp_{self.key}", given > 0)

    async def in_turns(self, servers: list[McpServer], state: int | None) -> Turn:
        """One whose model may call tools of these servers, or may have to sum up its input."""
        body = streamed(self.body, self.message.prepares)
        facts = self.api.requests.with_tools(
            self.active.raw, body, servers, self.who(), History(self.earlier), keep=self._keep
        )
        start = Start(digest_of(self.active.raw), self.active.seed, self.active.created, is_known=state is not None)
        try:
            run = self.api.tools.run(self.request, facts, start)
            await run.open(start.digest, start.is_known)
        except ApiError as error:
            raise renamed(error) from None
        task = asyncio.get_running_loop().create_task(run.run())

        def leave() -> None:
            task.cancel()
            run.leave()

        given = 0 if state is None else read_state(state)[1]
        form, lane = ToolRunFormat(run, given), self.message.stream_id
        return Turn(run.job, form, lane, leave, [NO_SLOT], f"resp_{self.key}", given > 0)

    def _keep(self, key: str, ended: Object) -> None:
        """By the store, or by the connection itself."""
        client = self.request[CLIENT]
        if not self.api.requests.keep(self.body, key, ended, client):
            self.session.remember(self.message.stream_id, unkept(self.body, key, ended, self.earlier, client))
