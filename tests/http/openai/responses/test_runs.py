"""A response with tools that a successor goes on with: whatever fails ends it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.openai.responses.answers import ResponseAnswer
from actorserve.http.openai.responses.mcp.background import RunningTools
from actorserve.http.openai.responses.mcp.run import ToolRun
from actorserve.http.openai.responses.schemas import ResponsesRequest

KEY = f"{0:02x}{7:016x}{9:08x}"


class BrokenRun(ToolRun):
    async def open(self, digest: bytes, going_on: bool) -> None:
        assert digest == b"digest" and going_on
        raise ValueError("a record that cannot be")


async def test_one_that_cannot_be_opened_ends() -> None:
    answer = ResponseAnswer(KEY, "m", 9, {"previous_response_id": None, "background": True})
    nothing = cast(Any, None)
    run = BrokenRun(*(nothing,) * 2, ResponsesRequest(input="hi"), [], answer, [], *(nothing,) * 2, 1, nothing)
    running = RunningTools(run, b"digest", "id")
    running.begin()
    with pytest.raises(ApiError) as found:
        async with asyncio.timeout(5):
            await running.job.done
    assert found.value.status == 500 and running.failed(found.value)["status"] == "failed"
