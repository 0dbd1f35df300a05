"""A real server with --record: random load, deaths of its worker and of its scheduler, and every plan again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from actorserve.actors.cli import main
from actorserve.actors.protocol.messages import Cancel, Stopped
from actorserve.actors.scheduler.replay.file import Reading, RecordedTurn
from tests.support.server import WAIT_S, Server

REQUESTS = 24
TEXT = "Once upon a time there was a fox who lived in a forest with many friends. "
OPTIONS = ("--threads", "1", "--max-num-seqs", "12", "--max-num-batched-tokens", "64", "--max-model-len", "512",
           "--block-size", "8", "--kv-cache-memory-bytes", "2M", "--scheduling-policy", "priority")  # fmt: skip


def body(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    prompt = TEXT * rng.randrange(1, 4) + str(number % 7)
    found: dict[str, Any] = {"prompt": prompt, "max_tokens": rng.randrange(40, 160)}
    found |= {"temperature": 1.0, "seed": number, "priority": rng.randrange(3), "stream": True}
    if number % 5 == 0:
        found["stop"] = ["e", "a"]
    return found | {"ignore_eos": number % 3 > 0}


async def request(session: aiohttp.ClientSession, number: int, begun: asyncio.Queue[int]) -> None:
    """One of six goes away at its first token."""
    async with session.post("/v1/completions", json=body(number)) as response:
        assert response.status == 200, await response.text()
        await response.content.readany()
        begun.put_nowait(number)
        if number % 6:
            await response.read()


async def load(server: Server, *kill: str) -> None:
    """All requests; after every few of them that have begun, one actor is killed."""
    begun: asyncio.Queue[int] = asyncio.Queue()
    connector = aiohttp.TCPConnector(limit=20)
    async with aiohttp.ClientSession(server.base_url, connector=connector) as session:
        tasks = [asyncio.create_task(request(session, number, begun)) for number in range(REQUESTS)]
        for name in kill:
            for _ in range(8):
                await begun.get()
            os.kill(server.pids()[name], signal.SIGKILL)
        await asyncio.gather(*tasks)


def wait_until_written(path: Path) -> None:
    """All requests of a load are in the file: who is killed takes along what came since the last second, which may be
    all of them.
    """
    deadline, written = time.monotonic() + WAIT_S, 0
    while written < REQUESTS:
        assert time.monotonic() < deadline, f"{written} requests are in the file"
        time.sleep(0.05)  # nothing tells that a file grows
        written = len({fact.ref for record in Reading(str(path)) for _, fact in record.facts})


def test_a_servers_plans_come_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It takes seconds: a load that fills the KV memory, so that there are preemptions to be planned again."""
    path = tmp_path / "recording"
    with Server("--record", str(path), *OPTIONS) as server:
        asyncio.run(load(server))
        wait_until_written(path)
        asyncio.run(load(server, "scheduler", "worker"))
    assert main(["replay", str(path), "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found["equal"] and found["sections"] == 2 and not found["cut"] and found["plans"] > 200
    assert found["recorded"]["preemptions"] > 0 and found["recorded"]["requests"] > REQUESTS
    seen = {type(message) for turn in Reading(str(path)) if isinstance(turn, RecordedTurn) for message in turn.messages}
    assert {Cancel, Stopped} <= seen
    assert main(["replay", str(path), "--json", "--policy", "fcfs", "--blocks", "2000"]) == 0
    other = msgspec.json.decode(capsys.readouterr().out)
    assert other["other"]["preemptions"] == 0 < other["simulated"]["preemptions"]


def test_a_file_that_cannot_be_is_refused_at_the_start(tmp_path: Path) -> None:
    server = Server("--record", str(tmp_path / "nowhere" / "file"), wait=False)
    try:
        assert server.wait() != 0
        assert "--record: " in server.read_all() and "No such file" in server.output
    finally:
        server.__exit__(None, None, None)
