"""The whole server from start to end: ready, named, light, truthful about itself, and patient with running requests."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.support.client import connect
from tests.support.models.checkpoints import checkpoint
from tests.support.selection import slow
from tests.support.server import Server, stopped
from tests.support.until import PAUSE_S

TEMPLATES = {"template", "template-worker"}
NAMES = {*TEMPLATES, "worker", "scheduler", "detokenizer-0", "renderer-0", "frontend-0"}
MEMORY = 1 << 30  # PSS of all processes together
WAIT_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoint("llama", tmp_path_factory.mktemp("checkpoints")))


@pytest.fixture(scope="module")
def lasting(model: str) -> Iterator[Server]:
    """For tests after which it runs on."""
    with Server(model, "--kv-cache-memory-bytes", "16M", "--threads", "1", "--max-restarts", "100") as running:
        yield running


@pytest.fixture
def server(model: str) -> Iterator[Server]:
    """For one test, which may look at its start or end it."""
    with Server(model, "--kv-cache-memory-bytes", "16M", "--threads", "1") as running:
        yield running


@pytest.fixture
def scripted(model: str) -> Iterator[Server]:
    """For one test, which ends it: what the worker computes does not matter."""
    with Server(model, "--worker", "scripted", "--scripted-step-ms", "2") as running:
        yield running


def status(server: Server, path: str) -> int:
    connection = connect(server)
    connection.request("GET", path)
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def start_stream(server: Server, tokens: int) -> http.client.HTTPResponse:
    """A running completion of so many tokens, of which something has arrived."""
    connection = connect(server)
    model = json.loads(get(server, "/v1/models"))["data"][0]["id"]
    body = {"model": model, "prompt": "Hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.readline().startswith(b"data: ")
    return response


def get(server: Server, path: str) -> bytes:
    connection = connect(server)
    connection.request("GET", path)
    try:
        return connection.getresponse().read()
    finally:
        connection.close()


def test_ready_means_ready(lasting: Server) -> None:
    assert status(lasting, "/ready") == 200
    assert status(lasting, "/health") == 200
    assert set(lasting.pids()) == NAMES


def test_all_processes_together_are_light(lasting: Server) -> None:
    start_stream(lasting, 64).read()
    memory = {process.pid: process.memory_full_info().pss for process in lasting.processes()}
    assert len(memory) == len(NAMES) + 1 and sum(memory.values()) < MEMORY, memory


def startup(server: Server) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Seconds by actor and phase, and by actor."""
    text = get(server, "/metrics").decode()
    phases: dict[str, dict[str, float]] = {}
    for actor, phase, seconds in re.findall(r'startup_seconds{actor="(.*)",phase="(.*)"} (.*)', text):
        phases.setdefault(actor, {})[phase] = float(seconds)
    totals = {actor: float(seconds) for actor, seconds in re.findall(r'startup_total_seconds{actor="(.*)"} (.*)', text)}
    return phases, totals


def test_the_start_is_told_by_phase_and_a_later_one_is_its_own(server: Server) -> None:
    phases, totals = startup(server)
    assert phases.keys() == totals.keys() == NAMES - TEMPLATES | {"supervisor"}
    assert {"spawn", "imports", "weights", "kv_memory", "set_up"} <= phases["worker"].keys()
    assert phases["supervisor"].keys() == {"imports", "model", "memory", "actors", "first_token"}
    for actor, took in phases.items():
        assert min(took.values()) >= 0 and totals[actor] == pytest.approx(sum(took.values()))
        assert totals[actor] <= totals["supervisor"]  # they start within its start
    server.wait_for(rf"worker is up \(pid \d+, {totals['worker']:.1f} s: spawn ", since_start=True)
    server.wait_for(rf"ready at .* in {totals['supervisor']:.1f} s: imports .*actors ", since_start=True)
    os.kill(server.pids()["worker"], signal.SIGKILL)
    server.wait_for("worker ended")
    server.wait_for("worker is up")
    again, later = startup(server)
    assert again["worker"].keys() == phases["worker"].keys() and later["worker"] != totals["worker"]
    assert later | {"worker": 0} == totals | {"worker": 0}


@pytest.mark.parametrize("name", ["worker", "renderer-0", *slow("scheduler", "detokenizer-0")])
def test_ready_tells_the_truth_while_an_actor_is_replaced(lasting: Server, name: str) -> None:
    pid = lasting.pids()[name]
    with stopped(lasting, "template-worker" if name == "worker" else "template"):  # else it may be there too soon
        os.kill(pid, signal.SIGKILL)
        lasting.wait_for(rf"{name} ended \(pid {pid}, ")
        seen = [status(lasting, "/ready")]
    deadline = time.monotonic() + WAIT_S
    while seen[-1] != 200 and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
        seen.append(status(lasting, "/ready"))
    assert seen[0] == 503 and seen[-1] == 200
    lasting.wait_for(rf"{name} is up")
    assert b"[DONE]" in start_stream(lasting, 8).read()


def test_a_stop_lets_running_requests_end(scripted: Server) -> None:
    response = start_stream(scripted, 400)
    scripted.signal(signal.SIGTERM)
    text = response.read()
    assert b'"finish_reason":"length"' in text and b"[DONE]" in text
    assert scripted.wait() == 0


def test_a_second_signal_cuts_them(scripted: Server) -> None:
    response = start_stream(scripted, 1500)
    scripted.signal(signal.SIGTERM)
    scripted.wait_for("the server stops")
    scripted.signal(signal.SIGTERM)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    assert scripted.wait() == 1


def test_kill_9_of_the_supervisor_under_load_leaves_nothing(scripted: Server) -> None:
    """A worker that computes dies so in tests/project/test_chaos.py."""
    start_stream(scripted, 1500)
    psutil.Process(scripted.pid).kill()
    scripted.wait()
    scripted.check_nothing_left()
