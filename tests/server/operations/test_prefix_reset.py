"""`POST /reset_prefix_cache` of a running server: nothing of before is found, streams go on, and no death loses it."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx2 as httpx
import pytest

from tests.support.server import Server

WAIT_S = 60.0
PATIENCE_S = 300.0  # of a stream that is computed again and again beside busy neighbours
STREAMS = 12
STORY = "Once upon a time there were many foxes in the wood. " * 6
ADMIN = {"X-Api-Key": "master"}
RECEIVED = 'actorserve:mailbox_received_total{actor="scheduler"}'


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(
        "--threads", "1", "--admin-api-key", "master", "--hang-timeout", "30", "--max-restarts", "1000"
    ) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url, timeout=WAIT_S) as made:
        yield made


def cached(client: httpx.Client, prompt: str = STORY) -> int:
    """Tokens of a prompt that were not computed."""
    answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2, "ignore_eos": True})
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def figure(text: str, name: str) -> float:
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def test_what_was_found_is_computed_again(client: httpx.Client) -> None:
    resets = "actorserve:prefix_cache_resets_total"
    cached(client)
    found, before = cached(client), figure(client.get("/metrics").text, resets)
    assert found > 0
    for path in ("", "?reset_running_requests=true"):
        assert client.post(f"/reset_prefix_cache{path}", headers=ADMIN).json() == {"status": "ok"}
        assert [cached(client), cached(client)] == [0, found]
    assert figure(client.get("/metrics").text, resets) == before + 2


# --- deaths ----------------------------------------------------------------------------------------------------------


async def received(session: aiohttp.ClientSession) -> float:
    """Records that were sent to the scheduler."""
    async with session.get("/metrics") as answer:
        return figure(await answer.text(), RECEIVED)


async def reset(session: aiohttp.ClientSession, running: bool = False) -> int:
    query = {"reset_running_requests": str(running).lower()}
    async with session.post("/reset_prefix_cache", params=query, headers=ADMIN) as answer:
        return answer.status


@asynccontextmanager
async def session_of(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    timeout, connector = aiohttp.ClientTimeout(total=PATIENCE_S), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.base_url, timeout=timeout, connector=connector) as session:
        yield session


async def reset_while(server: Server, victim: str) -> int:
    """The scheduler stands still while it is asked, and the victim dies before it goes on."""
    async with session_of(server) as session:
        pids, before = server.pids(), await received(session)
        os.kill(pids["scheduler"], signal.SIGSTOP)
        asked = asyncio.create_task(reset(session))
        async with asyncio.timeout(WAIT_S):
            while await received(session) == before:
                assert not asked.done(), asked
                await asyncio.sleep(0.001)  # other tasks run; what is waited for is the message in its lane
        os.kill(pids[victim], signal.SIGKILL)
        await asyncio.to_thread(server.wait_for, f"{victim} is up")
        if victim != "scheduler":
            os.kill(pids["scheduler"], signal.SIGCONT)
        return await asked


@pytest.mark.parametrize("victim", ["scheduler", "frontend-0"])
def test_a_death_while_it_is_asked(victim: str, server: Server, client: httpx.Client) -> None:
    cached(client)
    assert cached(client) > 0
    assert asyncio.run(reset_while(server, victim)) == 200
    assert cached(client) == 0


async def text(session: aiohttp.ClientSession, number: int) -> str:
    """Of a request that begins as the others do."""
    body: dict[str, Any] = {"prompt": f"{STORY}{number % 4}", "max_tokens": 60, "ignore_eos": True, "seed": number}
    async with session.post("/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["choices"][0]["text"])


async def texts_while_it_is_reset(server: Server, victims: list[str], rng: random.Random) -> tuple[list[str], int]:
    """Streams come one after the other while the cache is reset all the time; and how often it was."""
    resets = 0

    async def resetting(session: aiohttp.ClientSession) -> None:
        nonlocal resets
        for number in itertools.count():
            assert await reset(session, running=number % 20 == 3) == 200
            resets += 1
            await asyncio.sleep(0.05)  # whoever is computed again all the time never ends

    async def dying() -> None:
        for victim in victims:
            await asyncio.sleep(rng.uniform(0.05, 0.4))  # at any time: it is a moment, and no signal
            os.kill(server.pids()[victim], signal.SIGKILL)
            await asyncio.to_thread(server.wait_for, f"{victim} is up")

    async with session_of(server) as session:
        background = asyncio.create_task(resetting(session))
        deaths = asyncio.create_task(dying())
        found: list[str] = []
        while len(found) < STREAMS or not deaths.done():
            found += await asyncio.gather(*(text(session, number) for number in range(STREAMS)))
            assert not background.done(), background.exception()
        await deaths
        background.cancel()
    return found, resets


async def undisturbed(server: Server) -> list[str]:
    async with session_of(server) as session:
        return list(await asyncio.gather(*(text(session, number) for number in range(STREAMS))))


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(12, marks=pytest.mark.slow)], ids=["each once", "many, in any order"]
)
def test_no_text_is_another_under_load_and_deaths(rounds: int, server: Server) -> None:
    rng = random.Random(rounds)
    victims = ["scheduler", "frontend-0", "worker"] * rounds
    rng.shuffle(victims)
    expected = asyncio.run(undisturbed(server))
    found, resets = asyncio.run(texts_while_it_is_reset(server, victims, rng))
    assert found == expected * (len(found) // STREAMS) and resets > len(victims)
