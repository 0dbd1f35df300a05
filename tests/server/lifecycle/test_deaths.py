"""Actors are killed with -9 while streams run: each stream ends with the text of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.topology import System
from actorserve.actors.telemetry.gauges import SchedulerGauge
from actorserve.shm.board.board import Board
from actorserve.shm.segment import Segment
from tests.support.client import http_session
from tests.support.selection import slow
from tests.support.server import Server, stopped

SERVER_OPTIONS = ("--threads", "1", "--debug")
STREAMS = 12
TOKENS = 120
WAIT_S = 60.0


def body(number: int) -> dict[str, Any]:
    """Half of them greedy, half drawn with a seed; some of the greedy ones are kept from repeating themselves."""
    how: dict[str, Any] = {"temperature": 0} if number % 2 else {"temperature": 1.0, "seed": number}
    if number % 4 == 2:
        how |= {"temperature": 1.6, "top_n_sigma": 1.1, "typical_p": 0.9}
    if number % 8 == 4:
        how |= {"dynatemp_range": 0.6, "xtc_probability": 0.5, "xtc_threshold": 0.05}
    if number in (6, 8):
        how |= {"mirostat": number - 6 or 1, "mirostat_tau": 3, "mirostat_eta": 0.3}
    if number % 6 == 5:
        how |= {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "repeat_last_n": 16}
    if number % 6 == 3:
        how |= {"dry_multiplier": 1.5, "dry_allowed_length": 1}
    prompt = f"Once upon a time there were {number} foxes. " * (1 + number % 5)
    return {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": True, **how}


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
    async with http_session(server) as session:
        tasks = [asyncio.create_task(stream(session, number, begun)) for number in range(STREAMS)]
        for count, name in enumerate(kill):
            wanted = (count + 1) * STREAMS * rng.randrange(1, 12)
            while len(begun) < wanted and not all(task.done() for task in tasks):
                await asyncio.sleep(0.001)  # other tasks run; what is waited for is the number of events
            await replace(server, name)
        return await asyncio.gather(*tasks)


async def replace(server: Server, name: str) -> None:
    os.kill(server.pids()[name], signal.SIGKILL)
    await asyncio.to_thread(server.wait_for, f"{name} is up")


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> list[tuple[str, str]]:
    answers = asyncio.run(all_streams(server))
    assert all(text and reason == "length" for text, reason in answers)
    return answers


@pytest.mark.parametrize("name", ["worker", "detokenizer-0", *slow("scheduler", "renderer-0")])
def test_a_death_in_the_middle_changes_no_text(name: str, server: Server, undisturbed: list[tuple[str, str]]) -> None:
    assert asyncio.run(all_streams(server, name)) == undisturbed


async def streams_with_a_new_scheduler(server: Server) -> tuple[list[tuple[str, str]], list[int]]:
    """The scheduler is killed once no prompt is left to compute; and its gauges at that moment."""
    begun: list[int] = []
    async with http_session(server) as session:
        tasks = [asyncio.create_task(stream(session, number, begun)) for number in range(STREAMS)]
        while len(set(begun)) < STREAMS:
            await asyncio.sleep(0.001)  # as above
        scheduler = server.pids()["scheduler"]
        with stopped(server, "worker"):  # meanwhile none of them ends
            with stopped(server, "scheduler"):
                before = scheduler_gauges(server)
                os.kill(scheduler, signal.SIGKILL)
                # Its successor may say what it took before it is up.
                await asyncio.to_thread(server.wait_for, rf"scheduler ended \(pid {scheduler}, ")
        return await asyncio.gather(*tasks), before


def scheduler_gauges(server: Server) -> list[int]:
    """The scheduler's words on the board, from the segment of the running server."""
    config = make_config({"threads": 1, "debug": True})
    system = System(config, resolve_model(config))
    files = Path(f"/proc/{server.pid}/fd")
    file = next(file for file in files.iterdir() if os.readlink(file).startswith("/dev/shm/actorserve-"))
    segment = Segment.attach(os.open(file, os.O_RDWR))
    gauges = Board(segment, system.board_offset, len(system.actors)).gauges(system.by_name["scheduler"].position)
    segment.close()
    return gauges


def test_the_next_scheduler_takes_the_kv_over(server: Server, undisturbed: list[tuple[str, str]]) -> None:
    """Of all prompts and of all text so far a token or two of each stream is computed again."""
    answers, before = asyncio.run(streams_with_a_new_scheduler(server))
    assert answers == undisturbed
    line = server.wait_for(r"(\d+) requests go on, (\d+) of their (\d+) tokens of KV and (\d+) cached blocks")
    requests, taken, known, cached = map(int, line.groups())
    assert 0 < requests <= STREAMS and known - 2 * requests <= taken < known and cached > 0
    gauges = [after - was for after, was in zip(scheduler_gauges(server), before, strict=True)]
    planned, sampled = gauges[SchedulerGauge.PLANNED], gauges[SchedulerGauge.GENERATED]
    assert 0 < sampled <= planned <= sampled + 2 * requests, "all but a few steps of the new one sample"


def test_deaths_one_after_the_other(server: Server, undisturbed: list[tuple[str, str]]) -> None:
    names = ["detokenizer-0", "worker", "scheduler", "renderer-0", "scheduler", "detokenizer-0"]
    assert asyncio.run(all_streams(server, *names, seed=1)) == undisturbed


def test_a_frontend_that_dies_takes_no_stream_along(server: Server, undisturbed: list[tuple[str, str]]) -> None:
    """Its clients see a pause, and what their requests held is freed."""
    assert asyncio.run(all_streams(server, "frontend-0")) == undisturbed
    assert asyncio.run(blocks_held(server)) == 0


async def blocks_held(server: Server) -> float:
    """The share of KV blocks that is held, once it no longer changes or is zero."""
    async with http_session(server) as session, asyncio.timeout(WAIT_S):
        while True:
            async with session.get("/metrics") as response:
                lines = (await response.text()).splitlines()
            (held,) = (float(line.split()[-1]) for line in lines if line.startswith("vllm:kv_cache_usage_perc"))
            if not held:
                return held
            await asyncio.sleep(0.01)  # the scheduler writes its gauges when it turns: nothing can be waited on


def test_nothing_is_held_afterwards(server: Server) -> None:
    assert asyncio.run(blocks_held(server)) == 0
