"""A response with tools that a successor goes on with: whatever fails ends it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from actorserve.actors.protocol.topics.tools import ServerAddress, Tool, ToolCalled
from actorserve.http.errors import ApiError
from actorserve.http.openai.responses.answers import ResponseAnswer
from actorserve.http.openai.responses.mcp.background import RunningTools
from actorserve.http.openai.responses.mcp.run import ToolRun
from actorserve.http.openai.responses.schemas import ResponsesRequest
from actorserve.http.openai.responses.stored import History
from tests.http.fakes import finish_all
from tests.http.serving import serving


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
