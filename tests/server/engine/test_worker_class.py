"""--worker-cls: what it does otherwise holds through a death, its methods are called by name, the rest is as ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.worker.plugins.worker import make_worker
from tests.support.server import Server

ADMIN = {"X-Api-Key": "operator"}
CLASS = """
from actorserve import Worker

class Mine(Worker):
    begun = False

    def init_device(self):
        self.begun, self.steps, self.tokens = True, 0, 0

    def load_model(self, load):
        assert self.begun
        model = load()
        logits = model.logits

        def without(x):
            made = logits(x)
            made[:, self.config.seed] = float("-inf")
            return made

        model.logits = without
        return model

    def execute_model(self, step, run):
        drawn = run(step)
        self.steps += 1
        self.tokens += len(drawn)
        return drawn

    def counted(self, name):
        return [self.rank, getattr(self, name)]

class Other:
    pass
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("worker") / "mine.py"
    made.write_text(CLASS)
    return made


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    with Server("--threads", "1") as server:
        yield server


def answer(server: Server) -> list[int]:
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 12, "return_token_ids": True}
    said = httpx.post(f"{server.base_url}/v1/completions", json=body | {"ignore_eos": True}, timeout=60)
    assert said.status_code == 200, said.text
    tokens: list[int] = said.json()["choices"][0]["token_ids"]
    return tokens


def counted(server: Server, name: str) -> Any:
    body = {"method": "counted", "args": [name]}
    said = httpx.post(f"{server.base_url}/collective_rpc", json=body, headers=ADMIN, timeout=60)
    return said.json()["results"]


def test_its_model_steps_and_methods_are_those_of_the_worker(file: Path, plain: Server) -> None:
    """Without a token that was drawn before, in this life and in the next."""
    usual = answer(plain)
    missing = usual[1]
    own = ("--worker-cls", f"{file}:Mine", "--seed", str(missing), "--admin-api-key", "operator")
    with Server("--threads", "1", *own) as server:
        without = answer(server)
        assert without[0] == usual[0] and missing not in without
        assert counted(server, "tokens") == [[0, 12]] and 0 < counted(server, "steps")[0][1] <= 12
        os.kill(server.actors()["worker"], signal.SIGKILL)
        assert answer(server) == without
        assert counted(server, "tokens") == [[0, 12]], "it is another object"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Other", {}, "does not derive from actorserve.Worker"),
        ("Nobody", {}, "has no Nobody"),
        ("Mine", {"device": "cuda"}, "--worker-cls: not with --device cuda"),
        ("Mine", {"worker": "scripted"}, "--worker-cls: not with --worker scripted"),
    ],
)
def test_what_is_no_such_class_is_refused(file: Path, name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_worker(make_config({"worker_cls": f"{file}:{name}", **options}), 0)
    assert words in str(refused.value)
