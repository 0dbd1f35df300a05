"""The whole server under load, the death of its worker under load, and transformers' continuous batching beside it.

The model has the shape of Qwen3-0.6B and random weights; prompts are token ids, so that texts are compared by ids.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import msgspec
import numpy as np

from .report import TINY, at_least, say
from .shapes import SHAPES, write_folder

from tests.support.server import LAUNCH, Server  # isort: skip

NAME = "tiny" if TINY else "Qwen3-0.6B"
PROMPT, ANSWER = (24, 4) if TINY else (512, 128)
BATCHES = (2,) if TINY else (1, 32, 128, 256)
AGAINST = {2: 0.0} if TINY else {32: 5.0, 128: 10.0}  # how many times transformers' tokens a second
START_S = 240.0
VICTIMS = 3


def prompts(count: int, seed: int) -> list[list[int]]:
    words = SHAPES[NAME]["vocab_size"]
    return np.random.default_rng(seed).integers(5, words - 5, (count, PROMPT)).tolist()  # type: ignore[no-any-return]


async def answer(session: aiohttp.ClientSession, base: str, prompt: list[int]) -> tuple[list[int], float]:
    """(the answer's token ids, seconds until the first of them) of a streamed request."""
    body = {
        "prompt": prompt,
        "max_tokens": ANSWER,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    ids: list[int] = []
    begun, first = time.perf_counter(), 0.0
    async with session.post(f"{base}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = msgspec.json.decode(line[6:])
                ids += event["choices"][0].get("token_ids") or []
                first = first or time.perf_counter() - begun
    return ids, first


async def load(base: str, some: list[list[int]]) -> tuple[list[list[int]], float, float]:
    """(ids of all answers, output tokens a second, median seconds to the first) of all prompts at once."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=180)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        begun = time.perf_counter()
        answers = await asyncio.gather(*(answer(session, base, prompt) for prompt in some))
        took = time.perf_counter() - begun
    firsts = sorted(first for _, first in answers)
    return [ids for ids, _ in answers], sum(len(ids) for ids, _ in answers) / took, firsts[len(firsts) // 2]


async def deaths(server: Server, count: int) -> None:
    """The worker is killed again and again while requests run: each answer is what it was without."""
    some = prompts(count, 77)
    wanted, _, _ = await load(server.base_url, some)
    task = asyncio.create_task(load(server.base_url, some))
    for _ in range(VICTIMS):
        await asyncio.sleep(1.0 if not TINY else 0.2)
        if task.done():
            break
        os.kill(server.pids()["worker"], signal.SIGKILL)
        await asyncio.to_thread(server.wait_for, "worker is up", START_S)
    found, _, _ = await task
    same = sum(mine == other for mine, other in zip(found, wanted, strict=True))
    whole = sum(len(ids) == ANSWER for ids in found)
    say(f"worker killed with -9 under {count} streams: whole answers", whole, "", str(count), whole == count)
    say("the same under the same numerics: answers equal to those without a death", same, "", "", None)


def serve(folder: Path) -> dict[int, float]:
    """Tokens a second by batch size."""
    length = str(PROMPT + ANSWER + 64)
    options = ("--load-format", "dummy", "--max-num-seqs", str(max(BATCHES)), "--max-model-len", length)
    found: dict[int, float] = {}
    command = [*LAUNCH[:-1], "launch", str(folder)]
    begun = time.perf_counter()
    with Server(*options, "--max-num-batched-tokens", "8192", command=command, wait=False) as server:
        server.wait_ready(START_S)
        say(f"{NAME}: server ready after", time.perf_counter() - begun, "s")
        for line in server.lines:
            if "KV memory" in line or "graphs captured" in line:
                say("the server says", line.strip())
        asyncio.run(load(server.base_url, prompts(2, 1)))
        for count in BATCHES:
            _, rate, first = asyncio.run(load(server.base_url, prompts(count, count)))
            found[count] = rate
            label = f"{NAME}, {count} clients, {PROMPT} + {ANSWER} tokens"
            say(f"{label}: output", rate, "tokens/s")
            say(f"{label}: median time to first token", first * 1e3, "ms")
        asyncio.run(deaths(server, min(64, max(BATCHES))))
    return found


def transformers_rate(folder: Path, count: int) -> float:
    """Output tokens a second of transformers' continuous batching on a model of the same shape."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.from_pretrained(folder)
    dtype = torch.float32 if TINY else torch.bfloat16
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    generation = GenerationConfig(max_new_tokens=ANSWER, do_sample=False, eos_token_id=-1, pad_token_id=0)
    model.generate_batch(inputs=prompts(2, 1), generation_config=generation)
    begun = time.perf_counter()
    out = model.generate_batch(inputs=prompts(count, count), generation_config=generation)
    took = time.perf_counter() - begun
    return sum(len(answer.generated_tokens) for answer in out.values()) / took


def main(part: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = write_folder(NAME, Path(root) / NAME)
        rates = serve(folder)
        if part == "all":
            for count, times in AGAINST.items():
                theirs = transformers_rate(folder, count)
                say(f"transformers' continuous batching, {count} sequences: output", theirs, "tokens/s")
                at_least(f"this server's, {count} sequences: times as many", rates[count] / theirs, "", times)


if __name__ == "__main__":
    main(sys.argv[1])
