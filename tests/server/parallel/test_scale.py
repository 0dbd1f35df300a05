"""Engines that there is room for come and go under load, and nobody waits for one that is parked."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from actorserve.actors.observer.ask import ask
from actorserve.actors.observer.attach import attach, choose, find_servers
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.protocol.sockets.control_wire import STATUS, NoArguments
from actorserve.actors.telemetry.snapshot import Snapshot
from actorserve.actors.worker.scripted import FIRST, STRIDE
from tests.support.client import http_client, http_session
from tests.support.rolling import command
from tests.support.selection import slow
from tests.support.server import Server

TOKENS, VOCABULARY = 250, 2048  # of each stream, of the demo model


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = ("--worker", "scripted", "--scripted-step-ms", "5", "--max-data-parallel-size", "3")
    with Server(*options, "--debug", "--max-restarts", "100", "--admin-api-key", "root") as made:
        yield made


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"data_parallel_size": 3}, "--max-data-parallel-size 2: must be at least --data-parallel-size, which is 3"),
        ({"data_parallel_size": 2, "data_parallel_rank": 1}, "this server is one engine of several"),
        ({"record": "/tmp/recorded"}, "--record: it keeps what one scheduler acts on, and there are several engines"),
    ],
)
def test_options_that_contradict_each_other(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_config({"max_data_parallel_size": 2, **given})


def look(server: Server) -> Snapshot:
    attached = attach(pid=server.pid)
    try:
        return attached.look()
    finally:
        attached.close()


def test_engines_that_are_not_wanted_yet_are_parked_and_nobody_misses_them(server: Server) -> None:
    states = {actor.name: (actor.state, actor.parked, actor.pid is None) for actor in look(server).actors}
    assert [states[f"worker@{engine}"][0] for engine in range(3)] == ["ready", "parked", "parked"]
    assert states["worker@1"] == ("parked", "scale", True) and states["scheduler@1"][0] == "ready"
    with http_client(server) as client:
        assert client.get("/ready").json() == {"status": "ready"}
        for rank in range(3):
            body = {"prompt": "There", "max_tokens": 3, "ignore_eos": True}
            answer = client.post("/v1/completions", json=body, headers={"X-data-parallel-rank": str(rank)})
            assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3
        text = client.get("/metrics").text
    rows = {row[0]: row[1:5] for row in map(str.split, command(server, "ps").stdout.splitlines())}
    assert rows["worker@1"] == ["-", "parked", "-", "0"]
    assert [f'actorserve:actor_parked{{actor="worker@{one}"}} {value}' in text for one, value in enumerate("011")]
    assert server.pids().keys() >= {"worker@0", "scheduler@2"} and "worker@1" not in server.pids()


async def read(session: aiohttp.ClientSession, number: int, begun: asyncio.Event) -> bool:
    """Is a stream what it is to be? Each token of the scripted worker follows from the one before it. `begun` is set
    at its first piece.
    """
    body = {"prompt": f"{number}. Once", "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True}
    found: list[int] = []
    async with session.post("/v1/completions", json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                found += json.loads(line[6:])["choices"][0]["token_ids"]
                begun.set()
    span = VOCABULARY - FIRST
    return len(found) == TOKENS and all((b - a - STRIDE) % span == 0 for a, b in itertools.pairwise(found))


async def begin(session: aiohttp.ClientSession, count: int) -> list[asyncio.Task[bool]]:
    """So many streams, all of which have begun."""
    begun = [asyncio.Event() for _ in range(count)]
    reading = [asyncio.create_task(read(session, number, event)) for number, event in enumerate(begun)]
    await asyncio.gather(*(event.wait() for event in begun))
    return reading


async def scale(session: aiohttp.ClientSession, engines: int) -> dict[str, Any]:
    async with session.post("/scale", json={"engines": engines}, headers={"Authorization": "Bearer root"}) as response:
        assert response.status == 200, await response.text()
        return dict(await response.json())


def running(server: Server) -> list[int]:
    """Sequences of each engine."""
    return [actor.gauges["running"] for actor in look(server).actors if actor.kind == "scheduler"]


async def test_engines_come_and_go_in_mid_stream(server: Server) -> None:
    """All answers are those of one engine, also where a scheduler and the frontend that was asked die in between."""
    async with http_session(server) as session:
        reading = await begin(session, 6)
        assert await scale(session, 3) == {"engines": 3, "max_engines": 3, "scaling": False}
        assert all(await asyncio.gather(*reading)) and running(server) == [0, 0, 0]
        reading = await begin(session, 6)
        assert min(running(server)) > 0, "all have some"
        os.kill(server.pids()["scheduler@1"], signal.SIGKILL)
        asked = asyncio.create_task(scale(session, 1))
        os.kill(server.pids()["frontend-0"], signal.SIGKILL)
        assert (await asked)["engines"] == 1
        assert "worker@1" not in server.pids() and "worker@2" not in server.pids()
        assert all(await asyncio.gather(*reading))
        assert (await scale(session, 1))["engines"] == 1, "it may be said twice"


def test_a_command_scales_and_says_what_is_wrong(server: Server) -> None:
    done = command(server, "scale", "2")
    assert done.returncode == 0 and "engine 1 serves\n" in done.stdout and "has 2 engines now, 1 before" in done.stdout
    worker, first = (next(one for one in look(server).actors if one.name == f"worker@{engine}") for engine in (1, 0))
    assert worker.up_s < first.up_s and not worker.parked
    refused = command(server, "scale", "4")
    assert refused.returncode == 1 and "must be between 1 and 3 (--max-data-parallel-size), not 4" in refused.stderr
    assert "must be between 1 and 3" in command(server, "scale", "0").stderr
    assert command(server, "restart", "worker@2").stderr.endswith("nothing runs there, its engine is parked\n")
    assert command(server, "scale", "1").returncode == 0
    status = ask(choose(find_servers(), pid=server.pid), STATUS, NoArguments())
    parked = {child.name: child.parked for child in status.actors if child.parked}
    assert parked == {"worker@1": "scale", "worker@2": "scale"} and not status.under_way


async def test_a_worker_that_dies_while_its_engine_is_added_is_started_again(server: Server) -> None:
    """It may have been for a reason that is gone; and once it serves it is like any other."""
    async with http_session(server) as session:
        asked = asyncio.create_task(scale(session, 2))
        while not (pid := server.pids().get("worker@1")):
            await asyncio.sleep(0.001)  # nothing tells
        os.kill(pid, signal.SIGKILL)
        assert (await asked)["engines"] == 2
        assert (await scale(session, 1))["engines"] == 1


async def ask_again(session: aiohttp.ClientSession, number: int, over: asyncio.Event) -> bool:
    """One stream after the other, until it is over; are all what they are to be?"""
    right = True
    while not over.is_set():
        right = await read(session, number, asyncio.Event()) and right
    return right


@pytest.mark.parametrize("kind", [*slow("worker"), "scheduler"])
async def test_a_restart_of_engines_lets_requests_go_on(server: Server, kind: str) -> None:
    """Those of a worker in other engines, those of a scheduler in the same KV memory; one engine after the other."""
    async with http_session(server) as session:
        await scale(session, 2)
        over = asyncio.Event()
        clients = [asyncio.create_task(ask_again(session, number, over)) for number in range(6)]
        seen = len(server.output.splitlines())
        done = await asyncio.to_thread(command, server, "restart", kind)
        over.set()
        assert done.returncode == 0, done.stderr
        assert all(await asyncio.gather(*clients))
        said = server.output.splitlines()[seen:]
        for engine in range(2) if kind == "worker" else ():
            gives = next(
                at for at, line in enumerate(said) if f"scheduler@{engine} " in line and "go on elsewhere" in line
            )
            ends = next(at for at, line in enumerate(said) if f"{kind}@{engine} ended" in line)
            assert gives < ends
        first_serves = next(at for at, line in enumerate(said) if f"{kind}@0 is up" in line)
        assert first_serves < next(at for at, line in enumerate(said) if f"{kind}@1 ended" in line)
        assert not any(actor.parked for actor in look(server).actors if actor.name == "worker@1")


async def test_an_engine_that_is_parked_sleeps_with_the_others(server: Server) -> None:
    """It has nobody who could say so; one that is wanted meanwhile sleeps, too, whatever dies."""

    async def post(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        async with session.post(path, json=body, headers={"Authorization": "Bearer root"}) as answer:
            assert answer.status == 200, await answer.text()
            return dict(await answer.json())

    async with http_session(server) as session:
        assert await scale(session, 1)
        assert await post("/collective_rpc", {"method": "check_health"}) == {"results": [True]}
        await post("/sleep")
        os.kill(server.pids()["scheduler@2"], signal.SIGKILL)
        assert (await scale(session, 3))["engines"] == 3
        waits = asyncio.create_task(read(session, 0, asyncio.Event()))
        await post("/sleep?level=2&mode=keep")  # what has come meanwhile waits, too
        assert (await scale(session, 2))["engines"] == 2
        await post("/wake_up")
        assert await waits
        reading = await begin(session, 6)
        assert running(server)[2] == 0 < min(running(server)[:2])
        assert (await scale(session, 3))["engines"] == 3, "it is awake, as the others are"
        assert all(await asyncio.gather(*reading))
        assert (await scale(session, 1))["engines"] == 1
