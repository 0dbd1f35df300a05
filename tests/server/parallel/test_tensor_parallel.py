"""Two workers that share a model, on the CPU: the tokens of one that has all of it, also when one of them dies."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.observer.attach import attach
from tests.support.client import http_client
from tests.support.models.census import write_tiny
from tests.support.models.checkpoints import VOCABULARY, checkpoint
from tests.support.models.embedders import SENTENCES, cosines, logits, vectors, write_modules
from tests.support.models.embedders import write_model as write_embedder
from tests.support.models.greedy import greedy, reference
from tests.support.selection import slow
from tests.support.server import Server

TWO = ("-tp", "2", "--threads", "1", "--dtype", "float32")


def ask(server: Server, **body: Any) -> Any:
    given = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True, **body}
    with http_client(server) as client:
        answer = client.post("/v1/completions", json=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def check_greedy(folder: Path, prompts: list[list[int]], body: Any) -> list[list[int]]:
    """The choices' tokens, which are those of one that has all of the model."""
    answers: list[list[int]] = [choice["token_ids"] for choice in body["choices"]]
    model = reference(folder)
    assert {len(answer) for answer in answers} == {24}
    assert [greedy(model, *texts) for texts in zip(prompts, answers, strict=True)] == answers
    return answers


SLOW = slow("llama", "llama_tied", "llama_biased", "phi3_long", "gemma2", "glm4")


EXPERTS = [
    pytest.param("qwen3_moe", options, id="-".join(["experts", *options]))
    for options in ((), ("--enable-expert-parallel",))
] + [pytest.param("gpt_oss", ("--enable-expert-parallel",)), pytest.param("deepseek_v3", ())]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), EXPERTS)
def test_two_divide_experts(kind: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Each of them, or some for each."""
    folder = checkpoint(kind, tmp_path)
    prompts = [np.random.default_rng(seed).integers(3, 300, 20 + 17 * seed).tolist() for seed in range(3)]
    with Server(str(folder), *TWO, *options) as server:
        check_greedy(folder, prompts, ask(server, prompt=prompts))


@pytest.mark.slow
def test_experts_change_their_workers(tmp_path: Path) -> None:
    """While requests run, and again after a death, which begins with the workers that they had first."""
    folder = checkpoint("qwen3_moe", tmp_path)
    prompts = [np.random.default_rng(seed).integers(3, 300, 20 + 17 * seed).tolist() for seed in range(3)]
    balanced = ("--enable-expert-parallel", "--enable-eplb", "--eplb-config", '{"step_interval": 4}')
    with Server(str(folder), *TWO, *balanced) as server:
        check_greedy(folder, prompts, ask(server, prompt=prompts))
        server.wait_for("experts of layer 0: ")
        os.kill(server.actors()["worker-1"], signal.SIGKILL)
        check_greedy(folder, prompts, ask(server, prompt=prompts))


@pytest.mark.parametrize("kind", ["qwen3", *SLOW])
def test_two_say_what_one_says(kind: str, tmp_path: Path) -> None:
    """`llama_tied` has one KV head, which both hold; an odd vocabulary is cut into unequal parts."""
    folder = checkpoint(kind, tmp_path, vocab_size=VOCABULARY - 3)
    prompts = [np.random.default_rng(seed).integers(3, 300, 20 + 17 * seed).tolist() for seed in range(4)]
    with Server(str(folder), *TWO) as server:
        assert {"worker-0", "worker-1"} <= server.pids().keys()
        body = ask(server, prompt=prompts, logprobs=1, prompt_logprobs=0)
        answers = check_greedy(folder, prompts, body)
        ids = torch.tensor([prompts[1] + answers[1]])
        with torch.inference_mode():
            truth = torch.log_softmax(reference(folder)(ids).logits[0].float(), -1)
        scored = body["choices"][1]["prompt_logprobs"]
        for at, token in enumerate(prompts[1][1:], 1):
            assert scored[at][str(token)]["logprob"] == pytest.approx(truth[at - 1][token].item(), abs=1e-4)
        told = body["choices"][1]["logprobs"]["token_logprobs"]
        for at, (token, value) in enumerate(zip(answers[1], told, strict=True), len(prompts[1]) - 1):
            assert value == pytest.approx(truth[at][token].item(), abs=1e-4)


def test_two_tell_of_tokens_without_a_choice() -> None:
    """Their logits, which both make, though one alone tells of them: both would end, or wait for each other."""
    wish = {"prompt": "x", "max_tokens": 60, "ignore_eos": False, "logprobs": 1}
    with Server("--tensor-parallel-size", "2", "--threads", "1", "--quantization", "int8") as server:
        before = server.actors()
        (choice,) = ask(server, **wish, structured_outputs={"regex": "It is forced, and so is all of this."})["choices"]
        assert choice["text"] == "It is forced, and so is all of this."
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])
        with http_client(server) as client:
            assert re.search(r"^actorserve:forced_tokens_total\{.*\} [1-9]", client.get("/metrics").text, re.MULTILINE)
        assert server.actors() == before


@pytest.mark.parametrize(
    ("head", "options"),
    [
        pytest.param("", ()),
        pytest.param("SequenceClassification", ("--quantization", "int8"), marks=pytest.mark.slow),
    ],
)
def test_two_pool_as_one_does(head: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Vectors of a decoder and labels of its head, also when one of the two has died."""
    write_embedder("qwen3", tmp_path, head, **({"labels": 3, "pad_token_id": 383} if head else {}))
    if not head:
        write_modules(tmp_path, "lasttoken")
        expected = vectors(tmp_path, SENTENCES, "last")
    else:
        made = np.exp(np.stack(logits(tmp_path, head, [(text, None) for text in SENTENCES])))
        expected = made / made.sum(-1, keepdims=True)
    path, field = ("/classify", "probs") if head else ("/v1/embeddings", "embedding")
    with Server(str(tmp_path), *TWO, *options) as server:
        for dies in (False, True):
            if dies:
                os.kill(server.actors()["worker-1"], signal.SIGKILL)
            with http_client(server) as client:
                answer = client.post(path, json={"input": SENTENCES})
            assert answer.status_code == 200, answer.text
            found = np.array([one[field] for one in answer.json()["data"]])
            assert cosines(found, expected).min() > (0.99 if options else 0.99999)


def test_a_group_dies_together_and_loses_nothing() -> None:
    """Whoever dies of those who send or read the plan; the lanes tell each reader's own depth.

    One of the slowest: seven lives of workers, each of which imports torch, and two that wait for each other at each
    step on what cores there are.
    """
    asked: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 1, "seed": 5}
    both = {"worker-0", "worker-1"}
    with Server(*TWO) as server:
        expected = ask(server, **asked)["choices"][0]
        given = {**asked, "ignore_eos": True, "stream": True, "return_token_ids": True}
        ids: list[int] = []
        victims = [("scheduler", {"scheduler"}), ("worker-1", both), ("worker-0", both)]
        with http_client(server) as client, client.stream("POST", "/v1/completions", json=given) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                ids += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
                if victims and len(ids) > 60 * (3 - len(victims)) + 10:
                    before = server.pids()
                    victim, born = victims.pop()
                    os.kill(before[victim], signal.SIGKILL)
                    up = {server.wait_for(r"(worker-\d|scheduler) is up")[1] for _ in born}
                    after = server.pids()
                    assert up == born and all((after[name] != before[name]) == (name in up) for name in before)
        assert ids == expected["token_ids"] and not victims
        observed = attach(pid=server.pid)
        lanes = {lane.target: lane for lane in observed.look().lanes if lane.source == "scheduler"}
        observed.close()
        assert lanes["worker-0"].sent_records == lanes["worker-1"].sent_records
        assert (lanes["worker-0"].sent_records or 0) > 300, "a step is sent once, for both"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["granite", "cohere", "starcoder2", "glm"])
def test_two_share_layers_of_transformers(name: str, tmp_path: Path) -> None:
    """The tokens are generate()'s, also those of a stream in the midst of which a worker is killed."""
    write_tiny(name, tmp_path)
    prompts = [np.random.default_rng(seed).integers(3, 300, 20 + 17 * seed).tolist() for seed in range(3)]
    with Server(str(tmp_path), *TWO, "--model-impl", "transformers", "--device", "cpu") as server:
        expected = check_greedy(tmp_path, prompts, ask(server, prompt=prompts))
        given = {"prompt": prompts[0], "temperature": 0, "max_tokens": 200, "ignore_eos": True}
        ids: list[int] = []
        killed = False
        asked = {**given, "stream": True, "return_token_ids": True}
        with http_client(server) as client, client.stream("POST", "/v1/completions", json=asked) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                ids += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
                if ids and not killed:
                    os.kill(server.pids()["worker-1"], signal.SIGKILL)
                    killed = True
        assert {server.wait_for(r"(worker-\d) is up")[1] for _ in range(2)} == {"worker-0", "worker-1"}
        assert killed and len(ids) == 200 and ids[:24] == expected[0]
        assert ids == greedy(reference(tmp_path), prompts[0], ids)
        check_greedy(tmp_path, prompts, ask(server, prompt=prompts))
