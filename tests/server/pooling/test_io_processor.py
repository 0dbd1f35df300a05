"""--io-processor-plugin: what it makes of data and vectors; one that fails or dies ends nobody else's request."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest

from actorserve import LLM
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.renderer.io_processors.processor import load_class
from tests.server.pooling.conftest import PLUGIN
from tests.support.client import http_client
from tests.support.models.embedders import SENTENCES
from tests.support.server import Server

DATA = {"text": SENTENCES[0], "among": [SENTENCES[1], SENTENCES[0], SENTENCES[2]]}


@pytest.fixture
def client(pooling_server: Server) -> Iterator[httpx.Client]:
    with http_client(pooling_server) as made:
        yield made


def ask(client: httpx.Client, status: int = 200, **data: Any) -> Any:
    answer = client.post("/pooling", json={"data": {**DATA, **data}, "task": "plugin"})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_what_it_makes(client: httpx.Client) -> None:
    """The vectors are those of /v1/embeddings."""
    body = {"model": "embedder", "data": DATA, "request_id": "mine"}
    found = client.post("/pooling", json=body).json()
    assert found["request_id"] == "mine" and found["created_at"]
    vectors = client.post("/v1/embeddings", json={"input": [DATA["text"], *DATA["among"]]}).json()["data"]
    first, *others = (np.array(one["embedding"]) for one in vectors)
    assert found["data"]["nearest"] == SENTENCES[0] and found["data"]["shape"] == [len(first)]
    assert found["data"]["scores"] == pytest.approx([float(one @ first) for one in others], abs=1e-5)


def test_what_fails_is_one_request_s(client: httpx.Client) -> None:
    for fails in ("before", "behind"):
        told = ask(client, 500, fails=fails)["error"]
        assert told["code"] == "io_processor_failed" and "RuntimeError" in told["message"]
    told = ask(client, 400, text="")["error"]
    assert told["param"] == "data" and "a text is needed" in told["message"]
    assert ask(client)["data"]["nearest"] == SENTENCES[0]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"data": DATA, "input": "a"}, "input"),
        ({"task": "plugin"}, "data"),
        ({"data": DATA, "task": "token_classify"}, "task"),
        ({"data": {"text": "a", "among": [3]}}, None),
    ],
)
def test_what_is_wrong_is_said(client: httpx.Client, body: dict[str, Any], param: str | None) -> None:
    answer = client.post("/pooling", json=body)
    assert answer.status_code == (400 if param else 500) and answer.json()["error"]["param"] == param


def test_whoever_dies_the_answer_is_made(pooling_server: Server, client: httpx.Client, tmp_path: Path) -> None:
    """A renderer dies in the plugin, behind what it has kept of the request."""
    assert ask(client, dies=str(tmp_path / "died")) == {**ask(client), "request_id": ANY, "created_at": ANY}
    for name in ("renderer-0", "renderer-1", "frontend-0"):
        os.kill(pooling_server.pids()[name], signal.SIGKILL)
        assert ask(client)["data"]["nearest"] == SENTENCES[0]


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ANY = _Any()


def test_an_llm_gives_data(encoder: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "threads": 1, "max_num_seqs": 4}
    with LLM(str(encoder), in_process=True, io_processor_plugin=f"{PLUGIN}:Nearest", **options) as llm:
        output: Any = llm.encode({"data": DATA}, use_tqdm=False)[0]
        assert output.outputs["nearest"] == SENTENCES[0] and output.prompt_token_ids
        with pytest.raises(ValueError, match="a text is needed"):
            llm.encode({"data": {"text": ""}}, use_tqdm=False)
        with pytest.raises(ValueError, match="tokenization_kwargs: of data the plugin makes the prompts"):
            llm.encode({"data": DATA}, use_tqdm=False, tokenization_kwargs={"add_special_tokens": False})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def Nearest(config): pass", "has no pre_process, as actorserve.IOProcessor has"),
        ("def Nearest(): return 'os.path'", "os:path is a module, and no class"),
        ("Nearest = 'os.path'", "os:path is a module, and no class"),
        ("Nearest = 5", "has no pre_process"),
    ],
)
def test_what_is_no_processor(tmp_path: Path, source: str, words: str) -> None:
    (file := tmp_path / "plugin.py").write_text(source)
    config = make_config({"io_processor_plugin": f"{file}:Nearest"})
    with pytest.raises(ConfigError, match=f"^--io-processor-plugin: .*{words}"):
        load_class(config)


def test_one_that_cannot_be_made_ends_the_start_in_one_line(tmp_path: Path) -> None:
    (file := tmp_path / "plugin.py").write_text("raise RuntimeError('as it was told')\nclass Nearest: pass")
    server = Server("--worker", "scripted", "--io-processor-plugin", f"{file}:Nearest")
    try:
        assert server.wait() == 2
        last = server.read_all().splitlines()[-1]
        assert re.search(f"the server cannot start: renderer-0 ended .*: --io-processor-plugin: {file}:Nearest ", last)
        assert last.endswith("has failed: RuntimeError: as it was told")
    finally:
        server.stop()
