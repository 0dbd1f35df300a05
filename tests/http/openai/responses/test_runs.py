"""A response with tools that a successor goes on with: whatever fails ends it."""

from __future__ import annotations

import asyncio
import math
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actorserve.actors.protocol.messages import Finish, TokenLogprobs
from actorserve.actors.protocol.topics.tools import ServerAddress, Tool, ToolCalled
from actorserve.http.errors import ApiError
from actorserve.http.generation import idempotency
from actorserve.http.openai.responses.answers import ResponseAnswer
from actorserve.http.openai.responses.mcp import run
from actorserve.http.openai.responses.mcp.background import RunningTools
from actorserve.http.openai.responses.mcp.calls import STALE, ToolCalls
from actorserve.http.openai.responses.mcp.records import STALE_S, CallRecord, RunRecords
from actorserve.http.openai.responses.mcp.run import ToolRun
from actorserve.http.openai.responses.schemas import ResponsesRequest
from actorserve.http.openai.responses.stored import History
from tests.http.fakes import FakeEngine, finish_all, rendered, say
from tests.http.serving import Answer, Served, serving


class Noted:
    """settings.Tools: one server, whose one tool has a number of more than 64 bits in its schema."""

    labels = frozenset({"noted"})
    life = 1

    async def list(self, server: ServerAddress) -> list[Tool]:
        return [Tool("say", {"type": "object", "maximum": 1 << 70})]

    async def call(self, key: bytes, life: int, server: ServerAddress, name: str, arguments: str) -> ToolCalled:
        return ToolCalled(0, "said")


TOOL = {"type": "mcp", "server_label": "noted"}
ASKED = {"type": "mcp_approval_request", "id": "a", "name": "say", "arguments": "{}", "server_label": "noted"}


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([{"type": "mcp_approval_response"}], "input[0].approval_request_id"),
        ([ASKED, {"type": "mcp_approval_response", "approval_request_id": "a"}], "input[1].approve"),
        ([ASKED | {"id": {}}], "input[0].id"),
        ([{"type": "mcp_approval_request", "id": "a"}], "input[0].name"),
    ],
)
async def test_an_approval_that_is_none_is_refused_by_name(items: list[Any], param: str) -> None:
    async with serving(tools=Noted()) as served:
        answer = await served.ask("POST", "/v1/responses", {"input": items, "tools": [TOOL]})
        assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "namespace", "name": "n"}, "tools[0].tools"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}, "tools[0].tools[0].name"),
        ({"type": "custom", "name": "c", "format": 5}, "tools[0].format"),
    ],
)
async def test_a_tool_beside_those_of_servers_is_refused_by_name(tool: dict[str, Any], param: str) -> None:
    async with serving(tools=Noted(), tool_parser="hermes") as served:
        body = {"input": "hi", "tools": [tool, TOOL], "tool_choice": {"type": "custom", "name": "c"}}
        answer = await served.ask("POST", "/v1/responses", body)
        assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize("before", [False, True])
async def test_a_tool_s_schema_may_have_any_number(before: bool) -> None:
    tools = [{"name": "say", "input_schema": {"maximum": -(1 << 99)}}]
    items = [{"type": "mcp_list_tools", "server_label": "noted", "tools": tools}] if before else []
    async with serving(tools=Noted(), tool_parser="hermes") as served:
        client = await served.client()
        client.send("POST", "/v1/responses", {"input": [*items, {"role": "user", "content": "hi"}], "tools": [TOOL]})
        finish_all(await served.job())
        answer = await client.answer()
        assert answer.status == 200 and answer.json["output"][-1]["type"] == "message"


async def test_a_turn_has_its_slots_until_it_is_kept() -> None:
    """A frontend may die at any line, and what the turn went on from may be gone by then."""
    async with serving(tools=Noted(), tool_parser="hermes") as served:
        engine, put, held = served.engine, served.engine.put, []

        def noted(key: bytes, payload: bytes) -> bool:
            if b"mcp-turn" in payload:
                held.append(len(engine.kept_jobs))
            return put(key, payload)

        engine.put = noted  # type: ignore[method-assign]
        client = await served.client()
        client.send("POST", "/v1/responses", {"input": "hi", "tools": [TOOL]})
        finish_all(await served.job())
        assert (await client.answer()).status == 200
        assert held == [1] and not engine.kept_jobs


LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}


def told(*texts: str) -> list[TokenLogprobs]:
    """Tokens of these texts, whose likeliest ones may be impossible."""
    best = [(b"x", 99, -math.inf)]
    return [TokenLogprobs(text.encode(), at, -at / 4, 1, best) for at, text in enumerate(texts)]


async def told_by(served: Served, key: str, first: bool) -> list[str]:
    """The tokens with which a message is told, generated at `first`, and made of what is kept then."""
    client = await served.client()
    body = {"input": "hi", "tools": [TOOL], **LOGPROBS}
    client.send("POST", "/v1/responses", body, Idempotency_Key=key)
    if first:
        job = await served.job()
        rendered(job)
        say(job, 0, "yes, it", 2, logprobs=told("yes,", " it"))
        say(job, 0, " is", 3, Finish.STOP, logprobs=[TokenLogprobs(b" is", 7, -0.5, 1)])
    answer = await client.answer()
    assert answer.status == 200, answer.body
    (part,) = answer.json["output"][-1]["content"]
    assert part["text"] == "yes, it is"
    return [one["token"] for one in part["logprobs"]]


async def test_messages_have_logprobs_also_where_they_are_made_again() -> None:
    async with serving(tools=Noted(), tool_parser="hermes") as served:
        assert await told_by(served, "a", True) == await told_by(served, "a", False) == ["yes,", " it", " is"]


async def test_a_key_is_forgotten_some_time_behind_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of other answers; until then it stands for this request alone."""
    async with serving(tools=Noted(), tool_parser="hermes", idempotency_window_s=50.0) as served:
        body = {"input": "hi", "tools": [TOOL]}

        async def ask(body: dict[str, Any], first: bool) -> Answer:
            client = await served.client()
            client.send("POST", "/v1/responses", body, Idempotency_Key="a")
            if first:
                finish_all(await served.job())
            return await client.answer()

        begun = await ask(body, True)
        assert (await ask(body, False)).json["id"] == begun.json["id"]
        assert (await ask(body | {"input": "oh"}, False)).status == 422
        later = time.monotonic() + 51
        monkeypatch.setattr(idempotency, "time", SimpleNamespace(monotonic=lambda: later))
        again = await ask(body | {"input": "oh"}, True)
        assert again.status == 200 and again.json["id"] != begun.json["id"]


async def test_a_call_is_lost_by_its_age_and_by_no_jump_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    records, now, unix = RunRecords(cast(Any, FakeEngine()), "r"), time.monotonic(), time.time()
    calls = ToolCalls(Noted(), records, 9)
    calls.offered["say"] = cast(Any, SimpleNamespace(server=SimpleNamespace(address=None)))
    records.put(CallRecord(1, now), 0)
    records.put(CallRecord(1, now - STALE_S - 1), 1)
    monkeypatch.setattr(time, "time", lambda: unix + 1e6)
    made = [await calls.call(cast(Any, SimpleNamespace(name="say", text="{}"))) for _ in range(2)]
    assert [(one.output, one.error) for one in made] == [("said", ""), ("", STALE)]


async def test_tokens_are_those_of_the_same_texts_where_they_are_made_again() -> None:
    """Also where half a character was told as one that a later token is."""
    half, whole, said = "1234567\ufffd", ["1234567", "\ufffd"], []
    async with serving(tools=Noted(), tool_parser="hermes") as served:
        for first in (True, False):
            client = await served.client()
            body = {"input": "hi", "tools": [TOOL], **LOGPROBS}
            client.send("POST", "/v1/responses", body, Idempotency_Key="a")
            if first:
                job = await served.job()
                rendered(job)
                say(job, 0, half, 2, logprobs=[*told("1234567"), TokenLogprobs(b"\xf0", 7, -0.5, 1)])
                say(job, 0, "abcdefgh", 3, logprobs=told("abcdefgh"))
                say(job, 0, half, 5, Finish.STOP, logprobs=told(*whole))
            (part,) = (await client.answer()).json["output"][-1]["content"]
            said.append([one["token"] for one in part["logprobs"]])
    assert said == [["abcdefgh", *whole]] * 2


@pytest.mark.parametrize("refused", [False, True])
async def test_a_turn_whose_logprobs_are_too_long_is_kept_without(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their own bound, or by that of records."""
    monkeypatch.setattr(run, "MOST_TOLD", 1 << 10 if refused else 16)
    async with serving(tools=Noted(), tool_parser="hermes") as served:
        put, lengths = served.engine.put, []

        def noted(key: bytes, payload: bytes) -> bool:
            if b"mcp-turn" in payload:
                lengths.append(len(payload))
            return not (refused and len(lengths) == 1) and put(key, payload)

        served.engine.put = noted  # type: ignore[method-assign]
        assert await told_by(served, "a", True) == ["yes,", " it", " is"]
        assert await told_by(served, "a", False) == []
        assert len(lengths) == 1 + refused


async def test_others_have_their_turn_while_a_long_turn_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "AT_ONCE", 1)
    async with serving(tools=Noted(), tool_parser="hermes") as served:
        await told_by(served, "a", True)
        loop, passes, told_at = asyncio.get_running_loop(), [0], []
        tell = ToolRun._tell

        def passed() -> None:
            passes[0] += 1
            loop.call_soon(passed)

        def noted(self: ToolRun, events: bytes) -> None:
            if b"output_text.delta" in events:
                told_at.append(passes[0])
            tell(self, events)

        monkeypatch.setattr(ToolRun, "_tell", noted)
        loop.call_soon(passed)
        await told_by(served, "a", False)
        assert len(told_at) == 2 and told_at[0] < told_at[1]


KEY = f"{0:02x}{7:016x}{9:08x}"


class BrokenRun(ToolRun):
    async def open(self, digest: bytes, going_on: bool) -> None:
        assert digest == b"digest" and going_on
        raise ValueError("a record that cannot be")


async def test_one_that_cannot_be_opened_ends() -> None:
    answer = ResponseAnswer(KEY, "m", 9, {"previous_response_id": None, "background": True})
    nothing = cast(Any, None)
    run = BrokenRun(*(nothing,) * 2, ResponsesRequest(input="hi"), [], answer, History([]), *(nothing,) * 2, 1, nothing)
    running = RunningTools(run, b"digest", "id")
    running.begin()
    with pytest.raises(ApiError) as found:
        async with asyncio.timeout(5):
            await running.job.done
    assert found.value.status == 500 and running.failed(found.value)["status"] == "failed"
