"""Hidden states of /generate: what transformers' model has for the same tokens, whoever dies, and what is refused."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.support.client import http_client
from tests.support.models.checkpoints import checkpoint
from tests.support.models.greedy import reference
from tests.support.selection import slow
from tests.support.server import Server

OPTIONS = ("--device", "cpu", "--dtype", "float32", "--block-size", "16", "--threads", "1", "--max-restarts", "1000")
CUT = ("--max-num-batched-tokens", "24", "--max-num-seqs", "4", "--data-parallel-size", "2")
DRAFTS = json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1})
PROMPT = [5, 6, 7, 8] * 12 + [5, 6]
COUNT = 20


class Telling(NamedTuple):
    """A server that tells hidden states, and transformers' model of the same weights."""

    server: Server
    model: Any

    def ask(self, **body: Any) -> Any:
        given = {"temperature": 0, "max_new_tokens": COUNT, "ignore_eos": True} | body.pop("sampling_params", {})
        fields = {"input_ids": PROMPT, "return_hidden_states": True, "sampling_params": given} | body
        with http_client(self.server) as client:
            answer = client.post("/generate", json=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def check(self, answer: Any, prompt: list[int]) -> None:
        """The prompt's states, then those of each token but the last, are the last norm's output there."""
        first, *others = answer["meta_info"]["hidden_states"]
        tokens = prompt + answer["output_ids"][:-1]
        assert len(first) == len(prompt) and len(others) == len(answer["output_ids"]) - 1
        with torch.inference_mode():
            wanted = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0].float()
        torch.testing.assert_close(torch.tensor(first + others), wanted, atol=2e-4, rtol=2e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("qwen2", tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module")
def telling(folder: Path) -> Iterator[Telling]:
    with Server(str(folder), *OPTIONS, *CUT, "--enable-return-hidden-states", "--speculative-config", DRAFTS) as server:
        yield Telling(server, reference(folder))


def test_they_are_those_of_transformers(telling: Telling) -> None:
    """Of a prompt in several parts, behind a cached prefix, beside others, and where drafts are wrong."""
    plain = telling.ask(return_hidden_states=False)
    assert "hidden_states" not in plain["meta_info"]
    answers = telling.ask(input_ids=[PROMPT, PROMPT[:1]], return_hidden_states=[True, True])
    assert answers[0]["output_ids"] == plain["output_ids"] and answers[0]["meta_info"]["cached_tokens"] == 0
    for answer, prompt in zip(answers, (PROMPT, PROMPT[:1]), strict=True):
        telling.check(answer, prompt)
    for answer in telling.ask(sampling_params={"n": 2, "temperature": 1, "sampling_seed": 5}):
        telling.check(answer, PROMPT)
    short = telling.ask(sampling_params={"max_new_tokens": 1})
    nothing = telling.ask(sampling_params={"max_new_tokens": 0})
    assert short["meta_info"]["hidden_states"] == nothing["meta_info"]["hidden_states"] and nothing["output_ids"] == []
    telling.check(short, PROMPT)


def test_a_stream_tells_them_at_its_end(telling: Telling) -> None:
    given = {"temperature": 0, "max_new_tokens": COUNT, "ignore_eos": True}
    body = {"input_ids": PROMPT, "return_hidden_states": True, "sampling_params": given, "stream": True}
    with http_client(telling.server) as client, client.stream("POST", "/generate", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    *parts, last = map(json.loads, lines[:-1])
    assert lines[-1] == "[DONE]" and not any("hidden_states" in part["meta_info"] for part in parts)
    assert parts[-1]["meta_info"]["finish_reason"] == last["meta_info"]["finish_reason"]
    telling.check(last, PROMPT)


@pytest.mark.parametrize("name", ["worker@0", "frontend-0", *slow("scheduler@0", "detokenizer-0", "renderer-0")])
def test_a_death(telling: Telling, name: str) -> None:
    """In the middle of streams; both engines compute some, so that one of them is that of the dead."""
    given = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
    prompts = [PROMPT[: 20 + 7 * seed] for seed in range(4)]
    body = {"input_ids": prompts, "return_hidden_states": True, "sampling_params": given, "stream": True}
    killed, last = False, dict[int, Any]()
    with http_client(telling.server) as client, client.stream("POST", "/generate", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                if not killed:
                    killed = True
                    os.kill(telling.server.pids()[name], signal.SIGKILL)
                part = json.loads(line.removeprefix("data: "))
                last[part["index"]] = part
    telling.server.wait_for(f"{name} is up")
    for index, prompt in enumerate(prompts):
        telling.check(last[index], prompt)


def test_chats_and_completions_tell_that_of_the_last_token(telling: Telling) -> None:
    body = {"n": 2, "temperature": 0, "max_tokens": 5, "ignore_eos": True, "return_hidden_states": True}
    wanted = telling.ask(sampling_params={"max_new_tokens": 5})["meta_info"]["hidden_states"][-1]
    with http_client(telling.server) as client:

        def told(path: str, **more: Any) -> list[Any]:
            answer = client.post(path, json=body | more)
            assert answer.status_code == 200, answer.text
            lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")] or [answer.text]
            choices = [choice for line in lines for choice in json.loads(line)["choices"]]
            found = [one | one.get("delta", {}) for one in choices]
            return [one["hidden_states"] for one in found if "hidden_states" in one]

        for stream in (False, True):
            states = told("/v1/completions", prompt=PROMPT, stream=stream)
            assert states == [pytest.approx(wanted, abs=2e-4)] * 2
            chats = told("/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], stream=stream)
            assert len(chats) == 2 and chats[0] == pytest.approx(chats[1], abs=2e-4) and len(chats[0]) == len(wanted)
        one = client.post("/v1/completions", json=body | {"prompt": PROMPT, "max_tokens": 1}).json()
        plain = client.post("/v1/completions", json=body | {"prompt": PROMPT, "return_hidden_states": False}).json()
    assert [choice["hidden_states"] for choice in one["choices"]] == [[], []]
    assert not any("hidden_states" in choice for choice in plain["choices"])


def test_other_apis_say_where_they_are_told(telling: Telling) -> None:
    with http_client(telling.server) as client:
        answer = client.post("/v1/responses", json={"input": "a", "return_hidden_states": True})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "return_hidden_states") and "/generate" in error["message"]
