"""`/sleep`, `/wake_up` and `/is_sleeping` of a running server: what is given back, who waits, and that deaths change
nothing about it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.observer.commands import port_of, report, run
from tests.support.selection import slow
from tests.support.server import Server
from tests.support.streams.operated import LONG, OPTIONS, PATIENCE_S, SHORT, Stream, ask, complete, expected, session_of


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*OPTIONS) as running:
        yield running


@asynccontextmanager
async def awake_behind(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    """Whatever a test leaves, the next one finds a server that is awake."""
    async with session_of(server) as session:
        try:
            yield session
        finally:
            async with session_of(server) as last:
                await ask(last, "post", "/wake_up")


def kv_bytes(server: Server) -> int:
    """What the KV memory's file takes."""
    total = 0
    for path in Path(f"/proc/{server.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a descriptor that was closed since it was listed
            total += path.stat().st_blocks * 512 if "actorserve-kv" in os.readlink(path) else 0
    return total


def why(server: Server) -> Any:
    """Of all requests, by actorserve why."""
    return json.loads(run("why", "--list", "--json", "--server", port_of(server)).stdout)


def restarts(server: Server) -> int:
    (worker,) = (one for one in report(server)["actors"] if one["kind"] == "worker")
    return int(worker["restarts"])


def private_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_full_info().uss)


@pytest.mark.parametrize("level", [1, 2])
async def test_memory_is_given_back(server: Server, level: int) -> None:
    async with awake_behind(server) as session:
        text = await expected(session)
        before, pid = private_bytes(server.actors()["worker"]), server.actors()["worker"]
        deaths = restarts(server)
        assert kv_bytes(server) > 0
        slept = await ask(session, "post", f"/sleep?level={level}")
        assert slept.pop("elapsed_ms") > 0
        assert slept == {"status_code": 200, "status": "sleeping", "level": level}
        assert server.actors()["worker"] != pid and not kv_bytes(server)
        assert private_bytes(server.actors()["worker"]) < before - (10 << 20), "the model has 14 MB"
        assert (await ask(session, "get", "/is_sleeping"))["is_sleeping"] is True
        shown = report(server)
        assert [one["state"] for one in shown["actors"] if one["kind"] == "worker"] == ["sleeping"]
        assert f"asleep until /wake_up (level {level}," in shown["server"]["held"]["0"]
        state = {1: "weights_offloaded", 2: "discard_all"}[level]
        metrics = await (await session.get("/metrics")).text()
        assert re.search(rf'vllm:engine_sleep_state{{.*sleep_state="{state}"}} 1\.0', metrics)
        assert 'actorserve:actor_parked{actor="worker"} 1.0' in metrics
        ready = await ask(session, "get", "/ready")
        assert (ready["status_code"], ready["waiting_for"]) == (503, ["POST /wake_up: it sleeps"])
        other = asyncio.create_task(complete(session, **SHORT))
        assert not (await asyncio.wait([other], timeout=0.5))[0], "it waits"
        told = [one["waits_for"] for one in why(server) if one["where"] == "waiting for its first step"]
        assert len(told) == 1 and told[0][0].startswith("the engine, which is asleep until /wake_up")
        assert (await ask(session, "post", "/wake_up"))["status"] == "awake"
        assert (await other)["usage"]["completion_tokens"] == 5
        assert (await ask(session, "get", "/is_sleeping"))["is_sleeping"] is False
        assert server.actors()["worker"] != pid and restarts(server) == deaths, "to sleep and to wake is no death"
        assert await expected(session) == text


async def test_who_is_kept_goes_on_whoever_dies_meanwhile(server: Server) -> None:
    async with awake_behind(server) as session:
        text = await expected(session)
        streams = [Stream(session, **LONG) for _ in range(4)]
        for stream in streams:
            await stream.moved()
        assert (await ask(session, "post", "/sleep?mode=keep"))["status"] == "sleeping"
        for name in ("scheduler", "worker", "frontend-0", "frontend-1"):
            os.kill(server.actors()[name], signal.SIGKILL)
        async with session_of(server) as again:
            assert (await ask(again, "get", "/is_sleeping"))["is_sleeping"] is True
            assert not (await asyncio.wait([stream.task for stream in streams], timeout=0.5))[0]
            assert not kv_bytes(server)
            assert (await ask(again, "post", "/wake_up"))["status"] == "awake"
            for stream in streams:
                await asyncio.wait_for(stream.task, PATIENCE_S)
                assert (stream.text, stream.finish_reason) == (text, "length")


async def kill(server: Server, victim: str) -> None:
    """Whoever lives under this name; a worker may be between two lives."""
    async with asyncio.timeout(PATIENCE_S):
        while (pid := server.actors().get(victim)) is None:
            await asyncio.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["scheduler", "frontend-1", *slow("worker", "frontend-0")])
async def test_a_death_in_the_middle_of_it_loses_nothing(server: Server, victim: str) -> None:
    """Each is killed as the order comes to it: by the time of the answer it has been obeyed."""
    async with awake_behind(server) as session:
        stream = Stream(session, **LONG)
        await stream.moved()
        asked = asyncio.create_task(ask(session, "post", "/sleep?mode=keep"))
        await asyncio.sleep(0)
        await kill(server, victim)
        assert (await asyncio.wait_for(asked, PATIENCE_S))["status"] == "sleeping"
        asked = asyncio.create_task(ask(session, "post", "/wake_up"))
        await asyncio.sleep(0)
        await kill(server, victim)
        assert (await asyncio.wait_for(asked, PATIENCE_S))["status"] == "awake"
        await asyncio.wait_for(stream.task, PATIENCE_S)
        assert stream.finish_reason == "length"


async def test_what_runs_is_aborted_or_ends_first(server: Server) -> None:
    async with awake_behind(server) as session:
        text = await expected(session)
        stream = Stream(session, **LONG)
        await stream.moved()
        assert (await ask(session, "post", "/sleep?mode=wait"))["status"] == "sleeping"
        await asyncio.wait_for(stream.task, PATIENCE_S)
        assert (stream.text, stream.finish_reason) == (text, "length")
        woken = await ask(session, "post", "/wake_up?tags=weights")
        assert (woken["status"], woken["tags_woken"]) == ("sleeping", ["weights"]) and woken["elapsed_ms"] > 0
        other = asyncio.create_task(complete(session, **SHORT))
        assert not (await asyncio.wait([other], timeout=0.3))[0], "there is no KV memory"
        assert (await ask(session, "post", "/wake_up?tags=kv_cache"))["status"] == "awake"
        await other
        stream = Stream(session, **LONG | {"max_tokens": 1000})
        await stream.moved()
        assert (await ask(session, "post", "/sleep"))["status"] == "sleeping"
        await asyncio.wait_for(stream.task, PATIENCE_S)
        assert stream.finish_reason == "abort"


async def test_who_comes_is_refused_or_waits_for_so_long(server: Server) -> None:
    async with awake_behind(server) as session:
        await ask(session, "post", "/sleep?max_wait=1")
        async with session.post("/v1/completions", json=SHORT) as answer:
            error: dict[str, Any] = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (503, "asleep") and "not woken within 1 s" in error["message"]
        await ask(session, "post", "/sleep?new_requests=refuse")
        async with session.post("/v1/completions", json=SHORT) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (503, "asleep") and "POST /wake_up" in error["message"]


async def test_what_cannot_be_asked_is_told(server: Server) -> None:
    async with session_of(server) as session:
        for path, field in (
            ("/sleep?level=3", "level"),
            ("/sleep?mode=now", "mode"),
            ("/sleep?max_wait=0", "max_wait"),
            ("/wake_up?tags=brain", "tags"),
        ):
            refused = await ask(session, "post", path)
            assert (refused["status_code"], refused["error"]["param"]) == (400, field)
            said = {"level": "it must be 1 or 2", "mode": "it must be abort or keep or wait"}.get(field, field)
            assert said in refused["error"]["message"]
        assert (await ask(session, "get", "/is_sleeping"))["is_sleeping"] is False


def held(server: Server) -> dict[str, tuple[int, int]]:
    """Descriptors and private megabytes of each process, templates included."""
    processes = {name: psutil.Process(pid) for name, pid in {**server.pids(), "supervisor": server.pid}.items()}
    return {name: (one.num_fds(), int(one.memory_full_info().uss) >> 20) for name, one in processes.items()}


@pytest.mark.slow
@pytest.mark.timeout(900)  # two minutes, on a machine that may be busy
async def test_a_hundred_sleeps_under_load_leave_nothing(server: Server) -> None:
    """Eight clients ask without an end; each answer is whole, whatever sleeps and dies between its tokens."""
    async with awake_behind(server) as session:
        text = await expected(session)
        stop, answers = asyncio.Event(), 0

        async def client() -> None:
            nonlocal answers
            while not stop.is_set():
                assert await expected(session) == text
                answers += 1

        clients = [asyncio.create_task(client()) for _ in range(8)]
        after_some: dict[str, tuple[int, int]] = {}
        for number in range(100):
            level, mode = 1 + number % 2, ("keep", "wait")[number % 3 == 0]
            asked = asyncio.create_task(ask(session, "post", f"/sleep?level={level}&mode={mode}"))
            if number % 5 == 4:
                victims = server.actors()
                os.kill(victims[sorted(victims)[number // 5 % len(victims)]], signal.SIGKILL)
            assert (await asyncio.wait_for(asked, PATIENCE_S))["status"] == "sleeping"
            assert not kv_bytes(server)
            assert (await asyncio.wait_for(ask(session, "post", "/wake_up"), PATIENCE_S))["status"] == "awake"
            if number == 20:
                after_some = held(server)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*clients), PATIENCE_S)
        now = held(server)
        assert answers > 0 and now.keys() == after_some.keys()
        for name, (files, megabytes) in now.items():
            assert files <= after_some[name][0] + 12, f"{name}: {after_some} became {now}"
            assert megabytes <= after_some[name][1] + 16, f"{name}: {after_some} became {now}"
