"""Actors are killed with -9 while streams run: each stream ends with the text of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.server import Server

STREAMS = 24
TOKENS = 120
WAIT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--threads", "1", "--debug") as running:
        yield running


def body(number: int) -> dict[str, Any]:
    """Half of them greedy, half drawn with a seed."""
    how: dict[str, Any] = {"temperature": 0} if number % 2 else {"temperature": 1.0, "seed": number}
    prompt = f"Once upon a time there were {number} foxes. " * (1 + number % 5)
    return {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": True, **how}


@asynccontextmanager
async def client(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=WAIT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.base_url, timeout=timeout, connector=connector) as session:
        yield session


async def stream(session: aiohttp.ClientSession, number: int, begun: list[int] | None = None) -> tuple[str, str]:
    """(text, finish reason); an error in the stream is the text."""
    text, reason = "", ""
    async with session.post("/v1/completions", json=body(number)) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                return json.dumps(chunk), "error"
            text += chunk["choices"][0]["text"]
            reason = chunk["choices"][0]["finish_reason"] or reason
            if begun is not None and text:
                begun.append(number)
    return text, reason


async def all_streams(server: Server, *kill: str, seed: int = 0) -> list[tuple[str, str]]:
    """The answers of STREAMS streams, in the middle of which actors are killed one after the other."""
    rng = random.Random(seed)
    begun: list[int] = []
    async with client(server) as session:
        tasks = [asyncio.create_task(stream(session, number, begun)) for number in range(STREAMS)]
        for count, name in enumerate(kill):
            wanted = (count + 1) * STREAMS * rng.randrange(1, 12)
            while len(begun) < wanted and not all(task.done() for task in tasks):
                await asyncio.sleep(0.001)  # other tasks run; what is waited for is the number of events
            os.kill(server.pids()[name], signal.SIGKILL)
            await asyncio.to_thread(server.wait_for, f"{name} is up")
        return await asyncio.gather(*tasks)


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> list[tuple[str, str]]:
    answers = asyncio.run(all_streams(server))
    assert all(text and reason == "length" for text, reason in answers)
    return answers


@pytest.mark.parametrize("name", ["scheduler", "worker", "renderer-0", "detokenizer-0"])
def test_a_death_in_the_middle_changes_no_text(name: str, server: Server, undisturbed: list[tuple[str, str]]) -> None:
    assert asyncio.run(all_streams(server, name)) == undisturbed


def test_deaths_one_after_the_other(server: Server, undisturbed: list[tuple[str, str]]) -> None:
    names = ["detokenizer-0", "worker", "scheduler", "renderer-0", "scheduler", "detokenizer-0"]
    assert asyncio.run(all_streams(server, *names, seed=1)) == undisturbed


def test_a_frontend_that_dies_takes_only_its_connections(server: Server, undisturbed: list[tuple[str, str]]) -> None:
    """Its streams break off at once, what they held is freed, and the next requests are answered."""
    with pytest.raises(aiohttp.ClientError):
        asyncio.run(all_streams(server, "frontend-0"))
    assert asyncio.run(all_streams(server)) == undisturbed
    assert asyncio.run(blocks_held(server)) == 0


async def blocks_held(server: Server) -> float:
    """The share of KV blocks that is held, once it no longer changes or is zero."""
    async with client(server) as session, asyncio.timeout(WAIT_S):
        while True:
            async with session.get("/metrics") as response:
                lines = (await response.text()).splitlines()
            (held,) = (float(line.split()[-1]) for line in lines if line.startswith("vllm:kv_cache_usage_perc"))
            if not held:
                return held
            await asyncio.sleep(0.01)  # the scheduler writes its gauges when it turns: nothing can be waited on


def test_nothing_is_held_afterwards(server: Server) -> None:
    assert asyncio.run(blocks_held(server)) == 0
