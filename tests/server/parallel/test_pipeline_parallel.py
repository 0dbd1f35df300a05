"""A model in stages, each a worker or a group of them: answers are those of one worker, whoever dies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorserve.actors.observer.attach import attach
from tests.support.client import http_client
from tests.support.models.adapters import write_adapters
from tests.support.models.checkpoints import KINDS, VOCABULARY, checkpoint
from tests.support.server import Server

from .test_data_parallel import all_answers
from .test_tensor_parallel import ask, check_greedy

ROOM = ("--max-model-len", "512", "--kv-cache-memory-bytes", "3M")  # fewer tokens than all streams have
OPTIONS = ("--threads", "1", "--debug", "--max-restarts", "100", "--max-num-batched-tokens", "48", *ROOM)
STAGES = {"worker-pp0", "worker-pp1"}
PROMPT = "The quick brown fox. " * 12
ASKED: list[dict[str, Any]] = [
    {"prompt": PROMPT, "prompt_logprobs": 1, "logprobs": 2},
    {"prompt": PROMPT},
    {"prompt": PROMPT + "What then?", "n": 2, "temperature": 1, "seed": 3},
    {"prompt": ["One", "Two, three"], "temperature": 1.2, "seed": 8, "min_tokens": 20, "repetition_penalty": 1.3},
]
ADAPTED: list[dict[str, Any]] = [{"prompt": PROMPT, "model": f"adapter-{index}", "logprobs": 2} for index in (0, 1)]


def all_said(server: Server) -> tuple[list[list[Any]], list[Any]]:
    """Streams at once, then one request after the other, of which some find a prefix."""
    streams = asyncio.run(all_answers(server))
    return streams, said(server, ASKED + ADAPTED)


def said(server: Server, bodies: list[dict[str, Any]]) -> list[Any]:
    return [[told(choice) for choice in ask(server, **body)["choices"]] for body in bodies]


def told(choice: dict[str, Any]) -> list[Any]:
    """What must be the same; numbers to what float32 leaves of them."""
    logprobs = choice["logprobs"] and np.round(choice["logprobs"]["token_logprobs"], 3).tolist()
    prompt = [
        at and {word: round(one["logprob"], 3) for word, one in at.items()} for at in choice["prompt_logprobs"] or []
    ]
    return [choice["token_ids"], choice["finish_reason"], logprobs, prompt]


def counted(server: Server, name: str) -> float:
    """A sum of /metrics."""
    with http_client(server) as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{") or line.startswith(f"{name} "))


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options for two adapters, whose numbers are for layers of both stages."""
    return "--enable-lora", "--lora-modules", *write_adapters(tmp_path_factory.mktemp("adapters"), 2)


@pytest.fixture(scope="module")
def expected(lora: tuple[str, ...]) -> tuple[list[list[Any]], list[Any]]:
    with Server(*OPTIONS, *lora) as server:
        return all_said(server)


@pytest.fixture(scope="module")
def server(lora: tuple[str, ...]) -> Iterator[Server]:
    with Server(*OPTIONS, *lora, "-pp", "2") as made:
        yield made


def test_two_stages_say_what_one_worker_says(server: Server, expected: tuple[list[list[Any]], list[Any]]) -> None:
    """Grammars, penalties, logprobs, several choices, stop strings; prompts in parts, prefixes, preemptions."""
    assert all_said(server) == expected
    first, second, *_ = expected[1][-len(ADAPTED) :]
    assert first != second != expected[1][1]
    assert counted(server, "vllm:num_preemptions_total") > 0 and counted(server, "vllm:prefix_cache_hits_total") > 0


@pytest.mark.parametrize(
    "victims",
    [
        ("worker-pp1",),
        pytest.param(("worker-pp0",), marks=pytest.mark.slow),
        pytest.param(("worker-pp0", "scheduler"), marks=pytest.mark.slow),
    ],
)
def test_a_stage_dies_and_changes_no_answer(
    server: Server, expected: tuple[list[list[Any]], list[Any]], victims: tuple[str, ...]
) -> None:
    """All of them are started again, each with its KV memory, and read adapters anew."""
    before = server.pids()
    assert asyncio.run(all_answers(server, victims)) == expected[0]
    assert {server.wait_for(r"(worker-pp\d) is up")[1] for _ in STAGES} == STAGES
    assert said(server, ADAPTED) == expected[1][-len(ADAPTED) :]
    after = server.pids()
    assert all(before[name] != after[name] for name in STAGES)
    if victims == ("worker-pp1",):
        taken = re.findall(r"(\d+) of their (\d+) tokens of KV and \d+ cached blocks are taken over", server.output)
        assert taken and int(taken[-1][0]) > 0


def test_operators_see_stages(server: Server) -> None:
    """Under the names of the log, wherever actors are shown; both have the plan by one ring."""
    said(server, ASKED[:1])
    attached = attach(pid=server.pid)
    try:
        seen = attached.look()
        assert STAGES == {actor.name for actor in seen.actors if actor.kind == "worker"}
        lanes = {lane.target: lane.sent_records for lane in seen.lanes if lane.source == "scheduler"}
        steps = {actor.name: actor.gauges["steps"] for actor in seen.actors if actor.kind == "worker"}
    finally:
        attached.close()
    assert lanes["worker-pp0"] == lanes["worker-pp1"] and min(steps.values()) > 4


TENSOR = ("--threads", "1", "--dtype", "float32", "-pp", "2", "-tp", "2")
OTHERS = {"phi3_short", "deepseek_v32", "glm_moe_dsa"}  # that turn as the server's length says, or have no stages


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - OTHERS))
def test_every_family_by_two_times_two(kind: str, tmp_path: Path) -> None:
    """Or by two stages, where its heads cannot be divided."""
    folder = checkpoint(kind, tmp_path)
    prompts = [np.random.default_rng(seed).integers(3, VOCABULARY - 1, 20 + 17 * seed).tolist() for seed in range(4)]
    options = TENSOR[:-2] if kind in ("olmo2", "olmo3") else TENSOR
    with Server(str(folder), *options) as server:
        check_greedy(folder, prompts, ask(server, prompt=prompts))
