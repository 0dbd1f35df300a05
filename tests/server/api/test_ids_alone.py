"""--skip-tokenizer-init: prompts and answers are token ids, in a model's folder that has no tokenizer at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from actorserve.actors.model.info import DEMO_FOLDER
from tests.support.client import http_client
from tests.support.server import Server

IDS = [5, 300, 7, 41]
ASKED = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("alone") / "model"
    shutil.copytree(DEMO_FOLDER, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    options = ("--model", str(folder), "--skip-tokenizer-init", "--device", "cpu")
    with Server(*options) as server, http_client(server) as made:
        yield made


@pytest.fixture(scope="module")
def expected(demo_server: Server) -> list[int]:
    with http_client(demo_server) as client:
        answer = client.post("/v1/completions", json={"prompt": IDS, "return_token_ids": True, **ASKED})
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return ids


def test_ids_in_and_ids_out(client: httpx.Client, expected: list[int]) -> None:
    answer = client.post("/v1/completions", json={"prompt": IDS, "logprobs": 1, **ASKED}).json()
    (choice,) = answer["choices"]
    assert choice["token_ids"] == expected and choice["text"] == "" and choice["prompt_token_ids"] == IDS
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in expected]
    assert answer["usage"]["completion_tokens"] == len(expected)
    given = {"token_ids": IDS, "sampling_params": ASKED}
    assert client.post("/inference/v1/generate", json=given).json()["choices"][0]["token_ids"] == expected


def test_ids_as_they_come(client: httpx.Client, expected: list[int]) -> None:
    asked = {"prompt": [IDS, IDS], "stream": True, **ASKED}
    found: dict[int, list[int]] = {0: [], 1: []}
    with client.stream("POST", "/v1/completions", json=asked) as streamed:
        for line in streamed.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    found[choice["index"]] += choice["token_ids"] or []
    assert found == {0: expected, 1: expected}


@pytest.mark.parametrize("stream", [False, True])
def test_echo_tells_of_the_prompts_tokens(client: httpx.Client, expected: list[int], stream: bool) -> None:
    body = {"prompt": IDS, "echo": True, "logprobs": 1, "stream": stream, **ASKED}
    answer = client.post("/v1/completions", json=body).raise_for_status()
    if stream:
        parts = [json.loads(line[6:])["choices"][0] for line in answer.text.split("\n") if line.startswith("data: {")]
    else:
        parts = answer.json()["choices"]
    assert parts[0]["prompt_token_ids"] == IDS and {part["text"] for part in parts} == {""}
    told = [token for part in parts for token in (part["logprobs"] or {"tokens": []})["tokens"]]
    assert told == [f"token_id:{token}" for token in IDS + expected]


def test_a_token_ends_an_answer(client: httpx.Client, expected: list[int]) -> None:
    body = {"prompt": IDS, **ASKED, "stop_token_ids": [expected[2]]}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    at = expected.index(expected[2])
    assert choice["finish_reason"] == "stop" and choice["token_ids"] == expected[: at + 1]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": "a text"}, "prompt"),
        ("/v1/completions", {"prompt": [IDS, "a"]}, "prompt"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt"),
        ("/v1/completions", {"prompt": IDS, "stop": ["x"]}, "stop"),
        ("/v1/completions", {"prompt": IDS, "bad_words": ["x"]}, "bad_words"),
        ("/v1/completions", {"prompt": "a text", "echo": True}, "prompt"),
        ("/v1/completions", {"prompt": IDS, "response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ("/v1/responses", {"input": "hi"}, "messages"),
        ("/tokenize", {"prompt": "a text"}, "prompt"),
        ("/detokenize", {"tokens": IDS}, "tokens"),
    ],
)
def test_texts_are_refused_by_the_field(client: httpx.Client, path: str, body: dict[str, Any], field: str) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field or path == "/v1/responses"
    assert field in error["message"] or "--skip-tokenizer-init" in error["message"]


def test_check_and_info(client: httpx.Client) -> None:
    assert "chat_template" not in client.get("/tokenizer_info").json()
