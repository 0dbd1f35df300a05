"""`--deterministic` in a real server: a token's logprob is the same number alone and in any crowd, whatever happens.

`./tools/test tests/server/engine/test_deterministic.py -m slow` compares 1,000 prompts.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import aiohttp
import numpy as np
import pytest

from tests.support.client import http_session
from tests.support.server import Server

NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 1})
OPTIONS = ("--deterministic", "--no-enable-log-requests", "--threads")
TOKENS = 10
PATIENCE = pytest.mark.timeout(3600)  # thousands of answers, on a machine that may be busy
Answer = tuple[Any, ...]


def body(number: int) -> dict[str, Any]:
    """Token ids at random, half of them behind a beginning that many share; greedy, or drawn with a seed."""
    random = np.random.default_rng(number)
    shared = np.random.default_rng(number % 3).integers(10, 2000, 100).tolist() if number % 2 else []
    prompt = [*shared, *random.integers(10, 2000, int(random.choice([1, 7, 30, 90, 150]))).tolist()]
    how: dict[str, Any] = {"temperature": 0} if number % 3 else {"temperature": 1.0, "top_p": 0.9, "seed": number}
    told = {"logprobs": 3, "return_token_ids": True} | ({"prompt_logprobs": 1} if number % 10 == 0 else {})
    return {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, **how, **told}


async def ask(session: aiohttp.ClientSession, number: int) -> Answer:
    """All that is told of its tokens; logprobs come as the shortest text of their float32, so equal means bitwise."""
    async with session.post("/v1/completions", json=body(number)) as response:
        assert response.status == 200, await response.text()
        choice = (await response.json())["choices"][0]
    logprobs = choice["logprobs"]
    assert len(choice["token_ids"]) == len(logprobs["token_logprobs"]) == TOKENS
    return (
        *(choice["token_ids"], choice["text"], choice.get("prompt_logprobs")),
        *(logprobs["token_logprobs"], logprobs["top_logprobs"]),
    )


async def alone(server: Server, count: int) -> list[Answer]:
    """One after the other."""
    async with http_session(server) as session:
        return [await ask(session, number) for number in range(count)]


async def in_crowds(server: Server, count: int, seed: int, kill: bool = False) -> list[Answer]:
    """In random order, 2 to 64 at a time; with `kill` the worker dies in the middle of some crowds."""
    random = np.random.default_rng(seed)
    order = random.permutation(count).tolist()
    found: dict[int, Answer] = {}
    async with http_session(server) as session:
        while order:
            size = int(random.integers(2, 65))
            crowd, order = order[:size], order[size:]
            tasks = [asyncio.create_task(ask(session, number)) for number in crowd]
            if kill and random.random() < 0.3:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                os.kill(server.pids()["worker"], signal.SIGKILL)
                await asyncio.to_thread(server.wait_for, "worker is up")
            found |= dict(zip(crowd, await asyncio.gather(*tasks), strict=True))
    return [found[number] for number in range(count)]


def differing(found: list[Answer], expected: list[Answer]) -> list[int]:
    return [number for number, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]


def test_alone_and_in_a_crowd_and_after_a_death() -> None:
    with Server(*OPTIONS, "2", "--max-num-batched-tokens", "96") as server:
        expected = asyncio.run(alone(server, 24))
        assert differing(asyncio.run(in_crowds(server, 24, 1)), expected) == []

        async def die_in_the_middle() -> list[Answer]:
            async with http_session(server) as session:
                tasks = [asyncio.create_task(ask(session, number)) for number in range(24)]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                os.kill(server.pids()["worker"], signal.SIGKILL)
                return await asyncio.gather(*tasks)

        assert differing(asyncio.run(die_in_the_middle()), expected) == []


@PATIENCE
@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [(), ("--dtype", "bfloat16"), ("--dtype", "float16")], ids=["float32", "bf16", "f16"]
)
def test_a_thousand_prompts(options: tuple[str, ...]) -> None:
    """Alone, without a prefix cache and each prompt at once; then in crowds by servers that do all of it otherwise."""
    count = 1000
    with Server(*OPTIONS, "1", *options, "--no-enable-prefix-caching") as server:
        expected = asyncio.run(alone(server, count))
        assert differing(asyncio.run(in_crowds(server, count, 1)), expected) == []
    small = ("--max-num-batched-tokens", "80", "--kv-cache-memory-bytes", "6m", "--max-num-seqs", "48")
    patient = ("--max-restarts", "1000")
    with Server(*OPTIONS, "1", *options, *small, *patient, "--max-model-len", "512", "--block-size", "16") as server:
        assert differing(asyncio.run(in_crowds(server, count, 2, kill=True)), expected) == []
    with Server(*OPTIONS, "1", *options, "--speculative-config", NGRAM) as server:
        assert differing(asyncio.run(in_crowds(server, count, 3)), expected) == []


@PATIENCE
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_a_group_of_workers(size: int) -> None:
    """Four add up their parts in an order that does not depend on where in a batch a row stands."""
    with Server(*OPTIONS, "1", "-tp", str(size), "--max-num-batched-tokens", "96") as server:
        expected = asyncio.run(alone(server, 60))
        assert differing(asyncio.run(in_crowds(server, 60, 1)), expected) == []
        assert differing(asyncio.run(in_crowds(server, 60, 2)), expected) == []
