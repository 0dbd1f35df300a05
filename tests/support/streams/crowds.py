"""Requests alone and in crowds, and whether what is told of them is the same bits (`--deterministic`)."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import aiohttp
import numpy as np

from ..client import http_session
from ..server import Server

TOKENS = 10
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
