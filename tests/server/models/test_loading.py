"""/models/load and /models/unload: one of several models gives its memory back, and comes when it is asked."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from actorserve.actors.model.info import DEMO_FOLDER
from tests.support.client import http_client
from tests.support.server import Server
from tests.support.until import until

FIRST, SECOND = "actorserve-demo", "second"
ADMIN = {"X-Api-Key": "master"}
BODY = {"prompt": "The fox", "max_tokens": 5, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    also = f"{DEMO_FOLDER},served-model-name={SECOND},threads=1"
    with Server("--threads", "1", "--admin-api-key", "master", "--also", also) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with http_client(server) as made:
        yield made


def states(client: httpx.Client) -> dict[str, str]:
    return {card["id"]: card["status"]["value"] for card in client.get("/models").json()["data"]}


def tell(client: httpx.Client, what: str, model: str) -> None:
    answer = client.post(f"/models/{what}", json={"model": model}, headers=ADMIN)
    assert (answer.status_code, answer.json()) == (200, {"success": True})


def text(client: httpx.Client, model: str, **more: Any) -> str:
    answer = client.post("/v1/completions", json={**BODY, "model": model, **more})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_the_server_sleeps_once_all_of_its_models_do(client: httpx.Client) -> None:
    said = []
    for model in (SECOND, FIRST):
        tell(client, "unload", model)
        asleep = client.get("/is_sleeping", headers=ADMIN).json()["is_sleeping"]
        said.append((asleep, client.get("/props").json()["is_sleeping"]))
    assert said == [(False, False), (True, True)]
    assert text(client, FIRST) == text(client, SECOND)


def test_the_list_tells_their_sizes(client: httpx.Client) -> None:
    said = json.loads((DEMO_FOLDER / "config.json").read_text())
    for card in client.get("/models").json()["data"]:
        meta = card["meta"]
        assert meta["n_ctx_train"] == said["max_position_embeddings"] and meta["n_embd"] == said["hidden_size"]
        assert (meta["n_vocab"], meta["n_ctx"]) == (said["vocab_size"], card["max_model_len"])
        assert meta["size"] >= meta["n_params"] > 3_000_000


def test_a_model_is_unloaded_behind_what_it_had_begun_and_comes_for_the_next_request(client: httpx.Client) -> None:
    long = {"max_tokens": 100}
    before, whole = text(client, SECOND), text(client, SECOND, **long)
    body = {**BODY, **long, "model": SECOND, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        streamed = [next(lines)]
        tell(client, "unload", SECOND)
        streamed += lines
    assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in streamed) == whole
    assert states(client) == {FIRST: "loaded", SECOND: "unloaded"}
    assert client.get("/ready").json() == {"status": "ready"}, "whoever asks it is answered"
    assert text(client, FIRST) == before and states(client)[SECOND] == "unloaded"
    assert text(client, SECOND) == before and states(client)[SECOND] == "loaded"


@pytest.mark.parametrize("dies", ["", "scheduler@1", "worker@1", "frontend-0"])
def test_it_stays_unloaded_whoever_dies_until_it_is_loaded(server: Server, client: httpx.Client, dies: str) -> None:
    before = text(client, SECOND)
    tell(client, "unload", SECOND)
    if dies:
        pid = server.actors()[dies]
        os.kill(pid, signal.SIGKILL)
        until(lambda: server.actors().get(dies) not in (None, pid))
    assert states(client)[SECOND] == "unloaded"
    tell(client, "load", SECOND)
    assert states(client)[SECOND] == "loaded"
    assert text(client, SECOND) == before
