"""--models-dir, --models-preset and --models-max: models that are loaded once they are asked for, so many at a time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest

from actorserve.actors.model.info import DEMO_FOLDER
from tests.support.client import http_client
from tests.support.server import Server
from tests.support.until import until

from .test_loading import ADMIN, states, tell, text

NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name in NAMES[:2]:
        (folder / name).symlink_to(DEMO_FOLDER)
    preset = folder / "models.ini"
    preset.write_text(
        f"version = 1\n[*]\nthreads = 1\n[b]\nc = 512\n[c]\nmodel = {DEMO_FOLDER}\nload-on-startup = true\n"
    )
    options = ("--models-dir", str(folder), "--models-preset", str(preset), "--models-max", "1")
    with Server(*options, "--admin-api-key", "master") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with http_client(server) as made:
        yield made


def loaded(client: httpx.Client) -> set[str]:
    return {name for name, state in states(client).items() if state == "loaded"}


def test_which_there_are_and_which_is_loaded_at_the_start(client: httpx.Client) -> None:
    assert states(client) == {"a": "unloaded", "b": "unloaded", "c": "loaded"}
    lengths = {card["id"]: card["max_model_len"] for card in client.get("/models").json()["data"]}
    assert lengths["b"] == 512 < lengths["a"]


def test_who_is_asked_for_is_loaded_and_another_unloaded(client: httpx.Client) -> None:
    texts = {text(client, name) for name in (*NAMES, *NAMES)}
    assert len(texts) == 1 and loaded(client) == {"c"}
    tell(client, "load", "a")
    assert loaded(client) == {"a"}


def test_all_that_are_asked_at_once_take_turns_behind_what_has_begun(server: Server) -> None:
    def ask(name: str) -> str:
        with http_client(server) as client:
            return text(client, name, max_tokens=40)

    with ThreadPoolExecutor(12) as pool:
        texts = set(pool.map(ask, NAMES * 4))
    assert len(texts) == 1


@pytest.mark.parametrize("dies", ["scheduler@0", "scheduler@1", "worker@0", "frontend-0"])
def test_whoever_dies_meanwhile(server: Server, client: httpx.Client, dies: str) -> None:
    """One that is to leave, one that waits for its place."""
    before = text(client, "a", max_tokens=60)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(text, client, name, max_tokens=60) for name in ("a", "b", "c", "b")]
        pid = server.actors()[dies]
        os.kill(pid, signal.SIGKILL)
        assert {one.result() for one in asked} == {before}
    until(lambda: server.actors().get(dies) not in (None, pid))
    until(lambda: len(loaded(client)) <= 1)


def test_without_autoload_only_an_operator_loads(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(DEMO_FOLDER)
    with Server("--models-dir", str(tmp_path), "--no-models-autoload", "--admin-api-key", "master") as running:
        with http_client(running) as client:
            answer = client.post("/v1/completions", json={"prompt": "a", "model": "a"})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"
            assert "/models/load" in answer.json()["error"]["message"]
            assert client.post("/models/load", json={"model": "a"}, headers=ADMIN).status_code == 200
            assert text(client, "a")
