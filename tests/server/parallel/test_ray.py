"""Engines that a Ray cluster keeps, on several nodes of this machine: a node is lost in mid-stream, and the caretaker.

Runs where ray is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.support.client import http_session
from tests.support.server import Server
from tests.support.streams.elsewhere import STREAMS, all_answers, read

pytestmark = pytest.mark.slow
WAIT_S = 120.0
SECRET = {"ACTORSERVE_ENGINE_SECRET": "this is what both know"}
FAST = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "health_check_initial_delay_ms": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that computes nothing, and three nodes with room for an engine each."""
    made = pytest.importorskip("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": FAST}
    )
    for _ in range(3):
        made.add_node(num_cpus=1)
    engines: list[psutil.Process] = []
    yield made
    engines = ray_engines()
    made.shutdown()
    for process in engines:  # detached, and their nodes are gone: the kernel has ended them
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture(scope="module")
def server(cluster: Any) -> Iterator[Server]:
    options = ("--engines", f"ray://{cluster.address}?engines=2", "--data-parallel-size", "0", "--threads", "1")
    made = Server(*options, "--max-restarts", "100", env=SECRET, wait=False)
    try:
        made.wait_ready(WAIT_S)
        wait_until_ready(made)
        yield made
        made.stop()
    finally:
        made.__exit__(None, None, None)


def ray_engines() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] == ["ray::Engine"]:
                found.append(process)
    return found


def wait_until_ready(server: Server) -> None:
    """All engines compute."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.base_url}/ready") as response:
            if json.loads(response.read())["status"] == "ready":
                return
        time.sleep(0.1)  # it can only be asked for
    raise AssertionError(server.output)


def test_a_node_is_lost_in_mid_stream(server: Server) -> None:
    """kill -9 of a raylet: the kernel ends the engine with it, streams go on in the other one, and Ray starts it again
    on another node.
    """
    undisturbed = asyncio.run(all_answers(server, to=0))
    assert asyncio.run(all_answers(server, to=1)) == undisturbed
    before = {process.pid for process in ray_engines()}

    async def lose_a_node() -> list[list[Any]]:
        begun = asyncio.Barrier(len(STREAMS) + 1)
        async with http_session(server) as session:
            to = [number % 2 for number in range(len(STREAMS))]
            reading = [asyncio.create_task(read(session, number, begun, to[number])) for number in range(len(STREAMS))]
            await begun.wait()
            raylet = ray_engines()[0].parent()
            assert raylet is not None
            os.kill(raylet.pid, signal.SIGKILL)
            return await asyncio.gather(*reading)

    assert asyncio.run(lose_a_node()) == undisturbed
    server.wait_for(r"engine \d at ray://.* is gone", WAIT_S)
    wait_until_ready(server)
    assert {process.pid for process in ray_engines()} - before, "it is another one"
    assert asyncio.run(all_answers(server)) == undisturbed


def test_engines_go_on_without_their_caretaker(server: Server) -> None:
    """Its successor finds them where they are."""
    before = {process.pid for process in ray_engines()}
    os.kill(server.pids()["caretaker"], signal.SIGKILL)
    undisturbed = asyncio.run(all_answers(server))
    server.wait_for(r"caretaker is up", WAIT_S)
    server.wait_for(r"engine 0 is at ", WAIT_S)
    assert asyncio.run(all_answers(server)) == undisturbed
    assert {process.pid for process in ray_engines()} == before


def test_engines_come_by_load_and_go_without(cluster: Any, server: Server) -> None:
    """Of another name on the same cluster, so that each has its own. Prompts that are longer than a step wait."""
    options = ("--engines", f"ray://{cluster.address}?engines=1-2&name=by-load&idle=3", "--threads", "1")
    small = ("--max-num-batched-tokens", "16", "--max-num-seqs", "2", "--max-model-len", "1024")
    cluster.add_node(num_cpus=2)
    made = Server(*options, *small, "--data-parallel-size", "0", env=SECRET, wait=False)

    async def ask(number: int) -> int:
        async with http_session(made) as session:
            body = {"prompt": f"{number} " * 200, "max_tokens": 64, "ignore_eos": True}
            return (await session.post("/v1/completions", json=body)).status

    async def flood() -> list[int]:
        return await asyncio.gather(*map(ask, range(60)))

    try:
        made.wait_ready(WAIT_S)
        wait_until_ready(made)
        statuses: list[int] = []
        while "2 engines are wanted of Ray, 1 before" not in made.output:
            statuses += asyncio.run(flood())
        made.wait_for("1 engines are wanted of Ray, 2 before", WAIT_S, since_start=True)
        wait_until_ready(made)
        assert set(statuses) == {200} == {asyncio.run(ask(1))}
        made.stop()
    finally:
        made.__exit__(None, None, None)
