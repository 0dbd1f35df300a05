"""Models with experts or latents, and with windows that let go of what they see no more, while actors are killed -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from tests.support.client import http_session
from tests.support.models.checkpoints import checkpoint
from tests.support.models.greedy import greedy, reference
from tests.support.server import Server

TOKENS = 90
SMALL = ("--max-num-batched-tokens", "48", "--block-size", "8", "--max-model-len", "512", "--max-num-seqs", "8")
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "qwen3_moe": ({}, ()),
    "gpt_oss": ({}, SMALL),
    "deepseek_v3": ({}, SMALL),
    "llama4": ({}, SMALL),
    "qwen2_windows": ({"sliding_window": 40}, (*SMALL, "--kv-cache-memory-bytes", "1M")),
}


async def stream(session: aiohttp.ClientSession, prompt: list[int], begun: list[int]) -> list[int]:
    """The token ids; `begun` gets them, too."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    ids: list[int] = []
    async with session.post("/v1/completions", json={**body, "return_token_ids": True}) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                new = json.loads(line[6:])["choices"][0]["token_ids"]
                ids += new
                begun += new  # not events: what is late comes in one
    return ids


async def with_deaths(server: Server, prompts: list[list[int]], *names: str) -> list[list[int]]:
    begun: list[int] = []
    async with http_session(server) as session:
        tasks = [asyncio.create_task(stream(session, prompt, begun)) for prompt in prompts]
        for count, name in enumerate(names):
            while len(begun) < 150 * (count + 1):
                assert not all(task.done() for task in tasks), f"over before {name} was to die: {len(begun)} tokens"
                await asyncio.sleep(0.001)  # other tasks run; what is waited for is a number of tokens
            os.kill(server.pids()[name], signal.SIGKILL)
            await asyncio.to_thread(server.wait_for, f"{name} is up")
        return await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    "kind",
    ["qwen2_windows", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "qwen2_windows")],
)
def test_a_death_in_the_middle_changes_no_text(kind: str, tmp_path: Path) -> None:
    """Prompts of which some begin alike, more than run at once."""
    changes, options = KINDS[kind]
    folder = checkpoint(kind, tmp_path, **changes)
    random = np.random.default_rng(1)
    shared = random.integers(3, 300, 150).tolist()
    prompts = [shared[: 15 * number] + random.integers(3, 300, 9).tolist() for number in range(10)]
    with Server(str(folder), "--threads", "1", "--dtype", "float32", "--debug", *options) as server:
        if kind == "qwen2_windows":
            server.wait_for(r"as 2 of 3 block tables keep 56 tokens", since_start=True)
        answers = asyncio.run(with_deaths(server, prompts, "scheduler", "worker", "scheduler"))
        assert asyncio.run(with_deaths(server, prompts)) == answers
    model = reference(folder)
    assert {len(answer) for answer in answers} == {TOKENS}
    assert [greedy(model, *texts) for texts in zip(prompts, answers, strict=True)] == answers
