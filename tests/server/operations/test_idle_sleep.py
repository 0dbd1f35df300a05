"""`--sleep-idle-seconds`: a server gives its model back where nobody asks, and has it again for the next request."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from tests.support.client import http_client
from tests.support.server import Server
from tests.support.until import until

PARKED = 'actorserve:actor_parked{actor="worker"} 1.0'
BODY = {"prompt": "The fox", "max_tokens": 5, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--threads", "1", "--sleep-idle-seconds", "1") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with http_client(server) as made:
        yield made


def sleeps(client: httpx.Client) -> bool:
    return bool(client.get("/props").json()["is_sleeping"])


def text(client: httpx.Client) -> str:
    answer = client.post("/v1/completions", json=BODY)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.parametrize("dies", ["", "scheduler", "worker", "frontend-0"])
def test_a_request_wakes_it_whoever_died_in_its_sleep(server: Server, client: httpx.Client, dies: str) -> None:
    before = text(client)
    until(lambda: sleeps(client) and PARKED in client.get("/metrics").text and server.actors().get("worker"), 0.2)
    if dies:
        pid = server.actors()[dies]
        os.kill(pid, signal.SIGKILL)
        until(lambda: server.actors().get(dies) not in (None, pid))
    else:
        assert client.get("/ready").json() == {"status": "ready"}, "balancers go on to send requests"
        assert client.post("/tokenize", json={"content": "a"}).status_code == 200 and sleeps(client)
    assert text(client) == before
