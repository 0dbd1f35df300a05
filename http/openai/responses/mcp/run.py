"""A response whose model may call tools that are called here, or that may have to sum up its input before it answers:
turns of the model, and calls between them.

All that a client is told is a row of events, which follows from what is kept of turns and calls (records.py) alone. So
a frontend that takes over makes the same events again, gives its client those that it has not, and goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from actorserve.actors.protocol.messages import TokenLogprobs
from actorserve.actors.protocol.topics.tools import Tool

from ....errors import ApiError, bad_request
from ....generation.adapter import checked
from ....generation.choice import Choice
from ....generation.fields.sampling import NO_SEED
from ....generation.idempotency_keys import Key
from ....generation.job import Engine, Job
from ....generation.prepare import PreparedRequest
from ....output.answer import counts
from ....output.events import Piece
from ....settings import Tools
from ..answers import ResponseAnswer, status_of
from ..compaction import COMPACTION, check_summary, triggered
from ..events import ResponseEvents
from ..items import McpItem
from ..schemas import McpApprovalRequestItem, McpApprovalResponseItem, Object, ResponsesRequest
from ..stored import History
from .calls import ToolCalls
from .readers import RunReaders
from .records import LOST, ListsRecord, RunRecords, TurnRecord, packed
from .tools import McpServer, listed_before, offered, told, unreachable, with_functions

log = logging.getLogger("http")
GRAIN = 8  # characters of an event, so that events are the same whenever they are made
AT_ONCE = 256  # pieces that are told again before others have their turn
MOST_TOLD = 64 << 10  # bytes of a turn's logprobs that are kept: more of them would push out what others keep


class ToolRun:
    """One response. `job` stands for all of it: it begins, is written and ends as any other job."""

    def __init__(
        self,
        engine: Engine,
        tools: Tools | None,
        body: ResponsesRequest,
        servers: list[McpServer],
        answer: ResponseAnswer,
        before: History,
        ask: Callable[[ResponsesRequest], PreparedRequest],
        begin: Callable[[Job], Awaitable[None]],
        most_calls: int,
        keep: Callable[[Object], object],
        limit: int | None = None,
    ) -> None:
        """`ask` makes a turn's request, `begin` submits its job; `before` stands before `input`. `keep` is given the
        whole response before the client has its end. `limit`: tokens beyond which what was said is summed up.
        """
        self._keep = keep
        self.readers = RunReaders()
        self.job = self.readers.job
        self.events: list[bytes] = []
        self.ended: Object = {}
        self.answer = answer
        self._failure = b""  # the event that says so
        self._engine, self._tools, self._body, self._servers = engine, tools, body, servers
        self._ask, self._begin = ask, begin
        self._writer = ResponseEvents(answer)
        self._records = RunRecords(engine, answer.key)
        self._calls = ToolCalls(tools, self._records, min(most_calls, body.max_tool_calls or most_calls))
        given = body.input
        self._input: list[Object] = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
        self._before, self._lost = [*before.items, *self._input], before.lost
        self._lists: dict[str, list[Tool]] = {}
        self._turn: Job | None = None
        self._pieces: list[Piece] = []
        self._counts: list[int] = []
        self._tokens: list[TokenLogprobs] = []
        self._limit, self._turns = limit, 0
        self._answers = 0  # turns that are no summaries
        self._usage = [0, 0, 0, 0]

    # --- before anything is told ---------------------------------------------------------------------------------

    async def open(self, digest: bytes, going_on: bool) -> None:
        """Know the tools, and check all that can be. ApiError for what cannot be."""
        record = self._records.get(ListsRecord)
        if record is None and going_on:
            raise ApiError(500, LOST)
        if record is None:
            before = listed_before(self._before)
            new = {one.address.label: await self._list(one) for one in self._servers if one.address.label not in before}
            record = ListsRecord(digest, before | new, list(new))
            if not self._records.put(record):
                raise ApiError(424, "tools: the lists of these servers are too long to be kept.", "tools")
        self._lists = {label: record.lists[label] for label in record.told}
        functions = [tool.name or "" for tool in self._body.tools or ()]
        self._calls.offered = offered([(one, record.lists[one.address.label]) for one in self._servers], functions)
        self._writer.output.mcp = {
            name: (tool.server.address.label, tool.needs_approval) for name, tool in self._calls.offered.items()
        }
        if self._approvals():
            self._ask(self._request([]))  # what is wrong with it is told before anything is done
        elif self._records.get(TurnRecord) is None:
            await self._begin_turn()

    async def _list(self, server: McpServer) -> list[Tool]:
        assert self._tools is not None
        try:
            return await self._tools.list(server.address)
        except ApiError as error:
            raise unreachable(server, error) from None

    def _approvals(self) -> list[McpApprovalRequestItem]:
        """Calls that this request's input says yes to."""
        requests = {}
        for index, item in enumerate(self._before, len(self._input) - len(self._before)):
            if item.get("type") == "mcp_approval_request" and "id" in item:
                path = f"input[{index}]" if index >= 0 else "previous_response_id"
                request = checked(McpApprovalRequestItem, item, path)
                requests[request.id] = request
        found = []
        for index, item in enumerate(self._input):
            if item.get("type") != "mcp_approval_response":
                continue
            answer = checked(McpApprovalResponseItem, item, f"input[{index}]")
            asked = requests.get(answer.approval_request_id)
            if asked is None and self._lost and not answer.approve:
                continue  # nothing is made of a call that is denied, whatever it was
            tool = self._calls.offered.get(asked.name) if asked is not None else None
            if asked is None or tool is None or tool.server.address.label != asked.server_label:
                path = f"input[{index}].approval_request_id"
                raise self._lost or bad_request(f"{path}: no tool of this request was asked for by it.", path)
            if answer.approve:
                found.append(asked)
        return found

    def _request(self, said: list[Object]) -> ResponsesRequest:
        """A turn's: all that was said before it is input."""
        choice = self._body.tool_choice if not self._answers and not self._calls.count else None
        if self._calls.has_no_more:
            choice = "none"
        digest = hashlib.sha256(f"{self.answer.key} {self._turns}".encode()).digest()
        seed = int.from_bytes(digest[:6], "big") if self._body.seed in NO_SEED else self._body.seed
        functions = with_functions(self._body, self._calls.offered)
        return msgspec.structs.replace(functions, input=[*self._input, *said], tool_choice=choice, seed=seed)

    # --- from the first event to the last ------------------------------------------------------------------------

    async def run(self, begun: bytes | None = None) -> None:
        """All of it. What goes wrong is the job's error. `begun`: the digest of one that is not open yet, which a
        predecessor has begun.
        """
        try:
            if begun is not None:
                await self.open(begun, True)
            self._tell(self._writer.first())
            for label, tools in self._lists.items():
                self._tell(self._writer.listed(label, told(tools)))
            for asked in self._approvals():
                item, events = self._writer.approved(asked.server_label, asked.name, asked.arguments, asked.id)
                self._tell(events)
                await self._call(item)
            while await self._take_turn():
                self._turns += 1
        except ApiError as error:
            self.readers.fail(error)
        except Exception:
            log.exception("a response with tools failed")
            self.readers.fail(ApiError(500, "The server made a mistake; its log says which."))

    async def _take_turn(self) -> bool:
        """One answer of the model, and the calls in it; does another follow?"""
        first = len(self._writer.output.items)
        record = self._records.get(TurnRecord, self._turns)
        if record is None:
            record = await self._generate()
        else:
            self._writer.output.compacts = record.compacts
            for index, (piece, tokens) in enumerate(record.steps()):
                self._writer.add_tokens(tokens)
                self._tell(self._writer.pieces([piece]))
                if index % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)
        for at, count in enumerate(record.usage):
            self._usage[at] += count
        items = self._writer.output.items[first:]
        if record.compacts:
            check_summary(status_of(record.finish_reason), bool(items))
            self._tell(self._writer.close_turn("completed"))
            return True
        self._answers += 1
        calls = [item for item in items if isinstance(item, McpItem) and item.kind == "mcp_call"]
        if record.finish_reason != "tool_calls" or len(calls) < len([item for item in items if item.is_call]):
            await self._finish(calls, record.finish_reason)
            return False
        self._tell(self._writer.close_turn("completed"))
        for item in calls:
            await self._call(item)
        return True

    async def _finish(self, calls: list[McpItem], reason: str) -> None:
        """The last turn is over: the client is to go on, or nobody. What is to be called here is called before."""
        is_whole = reason == "tool_calls"
        self._tell(self._writer.close_turn("completed" if is_whole or reason == "stop" else "incomplete"))
        for item in calls:
            if is_whole:
                await self._call(item)
            else:
                self._tell(self._writer.called(item, "", "It was cut before its end, and not made.", "incomplete"))
        last = self._writer.last([], reason, counts(*self._usage), int(time.time()))
        assert self._writer.ended is not None
        self.ended = self._writer.ended
        self._keep(self.ended)
        self._tell(last)
        prompt, answer, cached, thought = self._usage
        self.readers.end(reason, (prompt, answer, cached, thought))

    async def _begin_turn(self) -> Job:
        """By slots that a predecessor has begun, or new ones."""
        refs = self._begun_refs()
        asked = await self._asked(self._said(), refs is not None)
        job = self._turn = asked.new_job()
        job.seed = int.from_bytes(self._records.name("seed", self._turns)[:8], "big")
        job.choices[0].grain = GRAIN
        self._pieces, self._tokens, self._counts = [], [], []
        if refs is not None:
            self._engine.submit(job, refs)
        else:
            await self._begin(job)
            self._engine.keep(self._slots, job, job.seed, self.answer.created)
        self.job.choices[0].ref = job.choices[0].ref
        return job

    def _begun_refs(self) -> list[int] | None:
        """The slots in which a predecessor has begun this turn. Their key says whether it sums up: what was too long
        then may be shorter by now.
        """
        for compacts in (True, False):
            self._writer.output.compacts = compacts
            kept = self._engine.kept(self._slots)
            if kept is not None and self._engine.has(kept.refs):
                return kept.refs
        return None

    async def _asked(self, said: list[Object], begun: bool) -> PreparedRequest:
        """For an answer, or where the prompt is too long for one, for a summary. `begun`: for which is known."""
        turn, output = self._request(said), self._writer.output
        if not begun and self._limit is not None and (not said or said[-1]["type"] != COMPACTION):
            tokens, _ = await self._engine.tokenize(self._ask(turn).prompts[0], False)
            output.compacts = len(tokens) > self._limit
        return self._ask(triggered(turn) if output.compacts else turn)

    async def _generate(self) -> TurnRecord:
        """The turn's text, as it comes."""
        job = await self._begin_turn() if self._turn is None else self._turn
        job.listen(self)
        await asyncio.shield(job.done)
        reason = job.choices[0].finish_reason or ""
        usage = (job.prompt_tokens, job.completion_tokens, job.cached_tokens, job.reasoning_tokens)
        record = TurnRecord(packed(self._pieces), reason, usage, self._writer.output.compacts)
        told = msgspec.msgpack.encode(self._tokens) if self._tokens else b""
        counts = self._counts if 0 < len(told) <= MOST_TOLD else []
        kept = msgspec.structs.replace(record, told=told if counts else b"", counts=counts)
        if not any(self._records.put(one, self._turns) for one in (kept, record)):  # rather without logprobs than not
            raise ApiError(500, LOST)
        self._engine.abort(job, self._slots)
        self._turn = None
        return record

    @property
    def _slots(self) -> Key:
        """By which the turn's slots are found again."""
        kind = "summary" if self._writer.output.compacts else "slots"
        return Key(self._records.name(kind, self._turns), b"", self._engine.index)

    def update(self, choice: Choice) -> None:
        """The turn's job has more text."""
        self._tokens += choice.logprobs
        self._writer.add_tokens(choice.logprobs)
        for piece in choice.take().pieces:
            self._pieces.append(piece)
            self._counts.append(len(self._tokens))
            self._tell(self._writer.pieces([piece]))

    def _said(self) -> list[Object]:
        return [item for item in self._writer.output.objects("completed") if item["type"] != "mcp_list_tools"]

    # --- calls ---------------------------------------------------------------------------------------------------

    async def _call(self, item: McpItem) -> None:
        """Make it, unless a predecessor has, and tell what has come of it."""
        record = await self._calls.call(item)
        self._tell(self._writer.called(item, record.output, record.error, "failed" if record.error else "completed"))

    # --- jobs that stand for it ----------------------------------------------------------------------------------

    def _tell(self, events: bytes) -> None:
        self.events += _each(events)
        self.readers.wake()

    def failed(self, error: ApiError) -> bytes:
        """The last event of one that cannot go on."""
        self._failure = self._failure or self._writer.error(error)
        return self._failure

    def failed_body(self, error: ApiError) -> Object:
        """The response object of one that failed."""
        return self.answer.failed(self._writer.output, error.message, error.status)

    def leave(self) -> None:
        """Nobody reads it any more: what is computed for it ends."""
        if self._turn is not None:
            self._engine.abort(self._turn, self._slots)


def _each(events: bytes) -> Iterator[bytes]:
    """One by one: each is two lines and an empty one."""
    return (event + b"\n\n" for event in events.split(b"\n\n")[:-1])
