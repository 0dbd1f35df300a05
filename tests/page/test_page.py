"""What a real server says to its page while actors stand still, die and come back, and when it drains."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.support.selection import slow
from tests.support.server import Server

WAIT_S = 60.0


@asynccontextmanager
async def watching(server: Server) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The events of one stream, to its clean end."""

    async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
        async for line in answer.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    timeout = aiohttp.ClientTimeout(total=WAIT_S)
    async with (
        aiohttp.ClientSession(server.base_url, timeout=timeout, read_bufsize=1 << 20) as client,
        client.get("/page/events") as answer,
    ):
        assert answer.status == 200
        yield events(answer)


def actor(event: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in event["actors"] if one["name"] == name)
    return dict(found)


async def until(events: AsyncIterator[dict[str, Any]], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first event that is so."""
    async for event in events:
        if wanted(event):
            return event
    raise AssertionError("the stream has ended")


def all_ready(event: dict[str, Any]) -> bool:
    return all(one["state"] == "ready" for one in event["actors"])


async def ask(server: Server, **more: Any) -> dict[str, Any]:
    body = {"prompt": "Once upon a time there was a fox. " * 8, "max_tokens": 64, "ignore_eos": True, **more}
    async with aiohttp.ClientSession(server.base_url) as client, client.post("/v1/completions", json=body) as answer:
        said: dict[str, Any] = await answer.json()
        return said


async def test_what_flows_is_seen(server: Server) -> None:
    """Counts of the scheduler, records of the lanes, and the blocks that a prompt leaves in the cache."""
    async with watching(server) as events:
        before = await until(events, all_ready)
        assert {one["kind"] for one in before["actors"]} == {
            *("supervisor", "worker", "scheduler", "detokenizer", "renderer", "frontend")
        }
        assert {one["name"]: one["pid"] for one in before["actors"] if one["kind"] != "supervisor"} == server.actors()
        assert actor(before, "supervisor")["pid"] == server.pid
        said = await ask(server, temperature=0)
        generated = said["usage"]["completion_tokens"]
        after = await until(
            events,
            lambda event: (
                event["engine"]["generated"] - before["engine"]["generated"] >= generated
                and not event["engine"]["running"]
            ),
        )
    assert after["engine"]["prompted"] - before["engine"]["prompted"] == said["usage"]["prompt_tokens"]
    assert after["engine"]["cached"].strip("0") and not after["engine"]["used"].strip("0")
    assert len(after["engine"]["cached"]) == len(after["engine"]["used"]) <= after["engine"]["blocks_total"]
    grown = {(old[0], old[1]): new[2] - old[2] for old, new in zip(before["lanes"], after["lanes"], strict=True)}
    round_trip = ["frontend-0", "renderer-0", "scheduler", "worker", "scheduler", "detokenizer-0", "frontend-0"]
    assert all(grown[lane] > 0 for lane in itertools.pairwise(round_trip)), grown


@pytest.mark.parametrize("name", ["scheduler", *slow("renderer-0", "worker")])
async def test_one_that_is_stopped_is_seen(server: Server, name: str) -> None:
    """Nobody but the frontend is asked, so the stream goes on; and all is well again afterwards."""
    async with watching(server) as events:
        pid = actor(await until(events, all_ready), name)["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            seen = await until(events, lambda event: actor(event, name)["state"] == "stopped")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert actor(seen, name)["pid"] == pid
        await until(events, all_ready)


@pytest.mark.parametrize("name", ["detokenizer-0", *slow("worker")])
async def test_one_that_is_killed_is_seen(server: Server, name: str) -> None:
    async with watching(server) as events:
        old = actor(await until(events, all_ready), name)
        os.kill(old["pid"], signal.SIGKILL)
        new = await until(events, lambda event: actor(event, name)["restarts"] > old["restarts"] and all_ready(event))
        assert actor(new, name)["pid"] not in (None, old["pid"])
        assert actor(new, name)["up_s"] < old["up_s"]


async def test_the_frontend_itself(server: Server) -> None:
    """Its successor cannot go on with the stream, and does not pretend to: the page asks again."""
    async with watching(server) as events:
        pid = actor(await until(events, all_ready), "frontend-0")["pid"]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(aiohttp.ClientError):
            await until(events, lambda event: False)
    async with watching(server) as events:
        assert actor(await until(events, all_ready), "frontend-0")["pid"] != pid


async def test_it_is_no_request(server: Server) -> None:
    async with watching(server) as events, aiohttp.ClientSession(server.base_url) as client:
        await until(events, all_ready)
        async with client.get("/load") as answer:
            assert await answer.json() == {"server_load": 0}


async def test_a_drain_does_not_wait_for_it() -> None:
    """The stream goes on while the drain does, then comes to its own end, and the server to a clean one."""
    with Server("--worker", "scripted") as server:
        async with watching(server) as events:
            await until(events, all_ready)
            server.signal(signal.SIGTERM)
            with pytest.raises(AssertionError, match="the stream has ended"):
                await until(events, lambda event: False)
        assert await asyncio.to_thread(server.wait) == 0
