"""`/pause`, `/resume` and `/abort_requests` of a running server: what stops, what goes on, and that deaths change
nothing about it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.selection import slow
from tests.support.server import Server
from tests.support.streams.operated import (
    ADMIN,
    LONG,
    OPTIONS,
    PATIENCE_S,
    SHORT,
    Stream,
    ask,
    complete,
    expected,
    session_of,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*OPTIONS) as running:
        yield running


@pytest.mark.parametrize("clear", ["true", *slow("false")])
async def test_what_was_kept_goes_on_where_it_stood(server: Server, clear: str) -> None:
    async with session_of(server) as session:
        text = await expected(session)
        stream = Stream(session, **LONG)
        await stream.moved()
        assert await ask(session, "post", f"/pause?mode=keep&clear_cache={clear}") == {
            "status_code": 200,
            "status": "paused",
        }
        assert (await ask(session, "get", "/is_paused"))["is_paused"] is True
        ready = await ask(session, "get", "/ready")
        assert (ready["status_code"], ready["waiting_for"]) == (503, ["POST /resume: it is paused"])
        other = asyncio.create_task(complete(session, **SHORT))
        done, _ = await asyncio.wait([stream.task, other], timeout=1.0)
        assert not done, "nothing is computed"
        async with session.get("/get_load", headers=ADMIN) as answer:
            (load,) = await answer.json()
        assert (load["dp_rank"], load["num_reqs"]) == (0, 2) and load["num_tokens"] > load["num_waiting_reqs"] > 0
        async with session.get("/v1/loads?include=core", headers=ADMIN) as answer:
            (more,) = (await answer.json())["loads"]
        assert more["num_running_reqs"] + more["num_waiting_reqs"] == 2
        assert 0 < more["num_total_tokens"] < more["max_total_num_tokens"] and more["max_running_requests"] > 1
        assert (await ask(session, "post", "/resume"))["status"] == "resumed"
        await asyncio.wait_for(stream.task, PATIENCE_S)
        assert (stream.text, stream.finish_reason) == (text, "length")
        assert (await other)["usage"]["completion_tokens"] == 5
        assert (await ask(session, "get", "/ready"))["status_code"] == 200
        assert (await ask(session, "get", "/is_paused"))["is_paused"] is False


async def test_what_runs_is_aborted_and_what_comes_waits(server: Server) -> None:
    async with session_of(server) as session:
        streams = [Stream(session, **LONG | {"max_tokens": 1000}) for _ in range(3)]
        for stream in streams:
            await stream.moved()
        assert (await ask(session, "post", "/pause"))["status"] == "paused"
        for stream in streams:
            await asyncio.wait_for(stream.task, PATIENCE_S)
            assert stream.finish_reason == "abort"
        other = asyncio.create_task(complete(session, **SHORT))
        assert not (await asyncio.wait([other], timeout=0.5))[0]
        await ask(session, "post", "/resume")
        assert (await other)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_what_has_begun_ends_first(server: Server) -> None:
    async with session_of(server) as session:
        text = await expected(session)
        stream = Stream(session, **LONG)
        await stream.moved()
        pause = asyncio.create_task(ask(session, "post", "/pause?mode=wait"))
        assert (await asyncio.wait_for(pause, PATIENCE_S))["status"] == "paused"
        await asyncio.wait_for(stream.task, PATIENCE_S)
        assert (stream.text, stream.finish_reason) == (text, "length")
        other = asyncio.create_task(complete(session, **SHORT))
        assert not (await asyncio.wait([other], timeout=0.5))[0]
        await ask(session, "post", "/resume")
        await other


async def test_a_pause_outlives_all_who_serve_it(server: Server) -> None:
    async with session_of(server) as session:
        text = await expected(session)
        streams = [Stream(session, **LONG) for _ in range(4)]
        for stream in streams:
            await stream.moved()
        await ask(session, "post", "/pause?mode=keep")
        for name in ("scheduler", "worker", "frontend-0", "frontend-1"):
            os.kill(server.actors()[name], signal.SIGKILL)
        async with session_of(server) as again:
            assert (await ask(again, "get", "/is_paused"))["is_paused"] is True
            assert not (await asyncio.wait([stream.task for stream in streams], timeout=1.0))[0]
            await ask(again, "post", "/resume")
            for stream in streams:
                await asyncio.wait_for(stream.task, PATIENCE_S)
                assert (stream.text, stream.finish_reason) == (text, "length")


async def test_requests_are_ended_by_their_ids(server: Server) -> None:
    async with session_of(server) as session:
        body = LONG | {"max_tokens": 1000}
        named, answered, left = Stream(session, "of-mine", **body), Stream(session, **body), Stream(session, **LONG)
        for stream in (named, answered, left):
            await stream.moved()
        asked = {"request_ids": ["of-mine", answered.id, "of-nobody"]}
        assert (await ask(session, "post", "/abort_requests", asked))["aborted"] == 2
        for stream in (named, answered, left):
            await asyncio.wait_for(stream.task, PATIENCE_S)
        assert [named.finish_reason, answered.finish_reason, left.finish_reason] == ["abort", "abort", "length"]
        every = Stream(session, **body)
        await every.moved()
        assert (await ask(session, "post", "/abort_requests", {"abort_all": True}))["aborted"] == 1
        await asyncio.wait_for(every.task, PATIENCE_S)
        assert every.finish_reason == "abort"


async def test_what_cannot_be_asked_is_told(server: Server) -> None:
    async with session_of(server) as session:
        refused = await ask(session, "post", "/pause?mode=now")
        assert (refused["status_code"], refused["error"]["param"]) == (400, "mode")
        refused = await ask(session, "post", "/abort_requests", {})
        assert (refused["status_code"], refused["error"]["param"]) == (400, "request_ids")
        async with session.post("/pause") as answer:
            assert answer.status == 401
        assert (await ask(session, "get", "/is_paused"))["is_paused"] is False
