"""--models-dir, --models-preset and --models-max: models that are loaded once they are asked for, so many at a time."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest

from actorserve.actors.model.info import DEMO_FOLDER
from tests.support.client import http_client
from tests.support.models.checkpoints import checkpoint
from tests.support.models.gguf.files import split
from tests.support.server import Server
from tests.support.until import until

from .test_loading import ADMIN, states, tell, text

NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    for name in NAMES[:2]:
        (folder / name).symlink_to(DEMO_FOLDER)
    (folder / "0-bad.gguf").write_bytes(b"GGUF")
    shutil.copytree(DEMO_FOLDER, folder / "later")
    (folder / "shards").mkdir()
    split(checkpoint("qwen3", tmp_path_factory.mktemp("checkpoint")), folder / "shards" / "small", 2)
    (folder / "shards" / "mmproj-F16.gguf").touch()
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


def sleep_states(client: httpx.Client, state: str) -> dict[str, float]:
    """Of each model, whether it is in this one."""
    found = re.findall(
        rf'vllm:engine_sleep_state{{.*model_name="([^"]*)".*sleep_state="{state}"}} ([01])', client.get("/metrics").text
    )
    return {name: float(value) for name, value in found}


def test_which_there_are_and_which_is_loaded_at_the_start(client: httpx.Client) -> None:
    assert states(client) == dict.fromkeys(["a", "b", "later", "shards", "0-bad"], "unloaded") | {"c": "loaded"}
    cards = {card["id"]: card for card in client.get("/models").json()["data"]}
    assert cards["b"]["max_model_len"] == 512 < cards["a"]["max_model_len"]
    failed = cards["0-bad"]["status"]
    assert failed["failed"] and "0-bad.gguf is broken, cut off" in failed["message"]
    assert [one["name"] for one in client.get("/api/ps").json()["models"]] == ["c"]
    assert sleep_states(client, "awake") == {"a": 0, "b": 0, "later": 0, "shards": 0, "c": 1}
    assert sleep_states(client, "discard_all") == {"a": 1, "b": 1, "later": 1, "shards": 1, "c": 0}


def test_who_asks_one_that_cannot_be_served_is_told_why_as_the_log_does(server: Server, client: httpx.Client) -> None:
    why = client.get("/models").json()["data"][-1]["status"]["message"]
    answer = client.post("/v1/completions", json={"prompt": "a", "model": "0-bad"})
    assert answer.status_code == 404 and why in answer.json()["error"]["message"]
    assert f"0-bad is not served: {why}" in server.output


def test_one_that_cannot_be_loaded_says_so_each_time_and_the_others_are_served(
    server: Server, client: httpx.Client, folder: Path
) -> None:
    before, weights = text(client, "a"), folder / "later" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(b"garbage" * 100)
    for path in ("/v1/completions", "/models/load", "/v1/completions"):
        body = {"prompt": "a", "model": "later"}
        answer = client.post(path, json=body, headers=ADMIN)
        error = answer.json()["error"]
        assert answer.status_code == 503 and "model.safetensors is broken or cut off" in error["message"]
        assert text(client, "a") == before and loaded(client) == {"a"}
    card = client.get("/v1/models/later").json()
    assert card["status"]["failed"] and card["status"]["message"] in error["message"]
    assert not re.search("worker@.* is started again", server.output)
    weights.write_bytes(whole)
    assert text(client, "later") == before and loaded(client) == {"later"}
    tell(client, "unload", "later")
    assert client.get("/v1/models/later").json()["status"] == {"value": "unloaded"}


def test_one_whose_worker_dies_and_that_cannot_be_loaded_anew_sleeps_and_says_why(
    server: Server, client: httpx.Client, folder: Path
) -> None:
    before, weights = text(client, "later"), folder / "later" / "model.safetensors"
    (folder / "garbage").write_bytes(b"garbage" * 100)
    whole = weights.rename(folder / "whole")
    (folder / "garbage").rename(weights)
    os.kill(server.actors()["worker@2"], signal.SIGKILL)
    until(lambda: states(client)["later"] == "unloaded")
    status = client.get("/v1/models/later").json()["status"]
    assert status["failed"] and "model.safetensors is broken or cut off" in status["message"]
    answer = client.post("/v1/completions", json={"prompt": "a", "model": "later"})
    assert answer.status_code == 503 and status["message"] in answer.json()["error"]["message"]
    assert text(client, "a") == before
    whole.rename(weights)
    assert text(client, "later") == before


def test_an_operators_wake_up_is_told_which_model_cannot_be_loaded(client: httpx.Client, folder: Path) -> None:
    before, weights = text(client, "later"), folder / "later" / "model.safetensors"
    assert client.post("/sleep", headers=ADMIN).status_code == 200
    whole = weights.rename(folder / "whole")
    weights.write_bytes(b"garbage" * 100)
    answer = client.post("/wake_up", headers=ADMIN)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (503, "model", "model_not_loaded")
    assert "`later`" in error["message"] and "model.safetensors is broken or cut off" in error["message"]
    whole.rename(weights)
    assert text(client, "later") == before


def test_one_that_has_come_since_the_start_is_told_of(client: httpx.Client, folder: Path) -> None:
    (folder / "new").symlink_to(DEMO_FOLDER)
    assert "new" not in states(client)
    *_, card = client.get("/models?reload=1").json()["data"]
    assert card["id"] == "new" and "the next start serves it" in card["status"]["message"]


def test_who_watches_is_told_of_loads(client: httpx.Client) -> None:
    wanted = [("a", "unloaded"), ("b", "loaded")]
    assert text(client, "a")
    with client.stream("GET", "/models/sse") as stream:
        lines = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        assert text(client, "b")
        seen = {(told["model"], told["data"]["status"]) for told in (next(lines) for _ in wanted)}
        while not seen.issuperset(wanted):
            told = next(lines)
            seen.add((told["model"], told["data"]["status"]))


def test_a_model_in_parts_is_loaded(client: httpx.Client) -> None:
    assert text(client, "shards") and loaded(client) == {"shards"}


def test_who_is_asked_for_is_loaded_and_another_unloaded(client: httpx.Client) -> None:
    texts = {text(client, name) for name in (*NAMES, *NAMES)}
    assert len(texts) == 1 and loaded(client) == {"c"}
    tell(client, "load", "a")
    assert loaded(client) == {"a"}


def test_an_operators_word_wakes_those_alone_that_one_lets_sleep(server: Server) -> None:
    """Models that were not asked for do not sleep by it, and are not loaded by it in turn."""
    with http_client(server) as operator:
        operator.headers["Authorization"] = "Bearer master"
        assert text(operator, "b") and loaded(operator) == {"b"}
        assert operator.get("/is_sleeping").json() == {"is_sleeping": False}
        assert operator.post("/wake_up").json()["status"] == "awake"
        assert loaded(operator) == {"b"}


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


def test_without_autoload_one_is_loaded_that_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(DEMO_FOLDER)
    with Server("--models-dir", str(tmp_path), "--no-models-autoload") as running:
        with http_client(running) as client:
            answer = client.post("/v1/completions", json={"prompt": "a", "model": "a"})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"
            assert "/models/load" in answer.json()["error"]["message"]
            assert client.post("/models/load", json={"model": "a"}).status_code == 200
            assert text(client, "a")
            assert client.post("/api/generate", json={"model": "a", "keep_alive": 0}).status_code == 200
            assert loaded(client) == set()
            asked = client.post("/v1/completions?autoload=true", json={"prompt": "a", "model": "a", "max_tokens": 1})
            assert asked.status_code == 200 and loaded(client) == {"a"}


CODE = """
import os
from transformers import LlamaForCausalLM
if os.path.exists({flag!r}):
    os.abort()
class Deadly(LlamaForCausalLM):
    pass
"""


@pytest.mark.slow
def test_one_that_kills_its_workers_ends_no_other(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a").symlink_to(DEMO_FOLDER)
    deadly = tmp_path / "models" / "b"
    shutil.copytree(DEMO_FOLDER, deadly)
    config = json.loads((deadly / "config.json").read_text())
    code = {"architectures": ["Deadly"], "auto_map": {"AutoModelForCausalLM": "deadly.Deadly"}}
    (deadly / "config.json").write_text(json.dumps({**config, **code}))
    (deadly / "deadly.py").write_text(CODE.format(flag=str(flag)))
    options = ("--models-dir", str(tmp_path / "models"), "--models-max", "1", "--trust-remote-code")
    with Server(*options) as running, http_client(running) as client:
        assert text(client, "b") == text(client, "a")
        flag.touch()
        for _ in range(2):
            answer = client.post("/v1/completions", json={"prompt": "a", "model": "b"})
            assert answer.status_code == 503 and "has died 3 times" in answer.json()["error"]["message"]
            assert text(client, "a")
        assert client.post("/models/load", json={"model": "b"}).status_code == 503
        assert running.output.count("killed by SIGABRT") <= 4, "once more, if it began before it was given up"
