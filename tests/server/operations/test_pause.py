"""`/pause`, `/resume` and `/abort_requests` of a running server: what stops, what goes on, and that deaths change
nothing about it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.support.server import Server

PATIENCE_S = 300.0
ADMIN = {"X-Api-Key": "lock-and-key"}
LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "seed": 7}
SHORT: dict[str, Any] = {"prompt": "The fox", "max_tokens": 5, "ignore_eos": True}
numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    words = ("--threads", "1", "--admin-api-key", "lock-and-key", "--hang-timeout", "30", "--max-restarts", "1000")
    with Server(*words, "--frontends", "2") as running:
        yield running


@asynccontextmanager
async def session_of(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    timeout, connector = aiohttp.ClientTimeout(total=PATIENCE_S), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.base_url, timeout=timeout, connector=connector) as session:
        yield session


async def ask(session: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> dict[str, Any]:
    async with session.request(method, path, headers=ADMIN, json=body) as answer:
        return {"status_code": answer.status, **await answer.json()}


async def complete(session: aiohttp.ClientSession, **body: Any) -> dict[str, Any]:
    async with session.post("/v1/completions", json=body) as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == 200, found
        return found


class Stream:
    """A streamed completion, read in the background."""

    def __init__(self, session: aiohttp.ClientSession, name: str = "", **body: Any) -> None:
        self.text = self.finish_reason = self.id = ""
        self.name = name or f"pause-{next(numbers)}"
        self.more = asyncio.Event()
        self.task = asyncio.create_task(self._read(session, body | {"stream": True}))

    async def _read(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
        async with session.post("/v1/completions", json=body, headers={"X-Request-Id": self.name}) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    assert "error" not in chunk, chunk
                    choice = chunk["choices"][0]
                    self.id, self.text = chunk["id"], self.text + choice["text"]
                    self.finish_reason = choice["finish_reason"] or self.finish_reason
                    self.more.set()

    async def moved(self) -> None:
        """Some text has come since the last time."""
        await asyncio.wait_for(self.more.wait(), PATIENCE_S)
        self.more.clear()


async def expected(session: aiohttp.ClientSession) -> str:
    return str((await complete(session, **LONG))["choices"][0]["text"])


@pytest.mark.parametrize("clear", ["true", "false"])
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
