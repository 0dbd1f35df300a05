"""The whole server under load, all at once and one by one, and the death of its worker; transformers beside it.

The model has the shape of Qwen3-0.6B and random weights; prompts are token ids, so that texts are compared by ids.

    python -m tools.gpu.serving server | transformers
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import numpy as np

from .report import FOLDER, TINY, at_least, at_most, say, surviving
from .shapes import SHAPES, write_folder

from tests.support.server import LAUNCH, Server  # isort: skip

NAME = "tiny-words" if TINY else "Qwen3-0.6B"
PROMPT, ANSWER = (24, 8) if TINY else (512, 128)
BATCHES = (2,) if TINY else (1, 32, 128, 256)
AGAINST = {2: 0.0} if TINY else {32: 5.0, 128: 10.0}  # how many times transformers' tokens a second
START_S = 240.0 if TINY else 60.0  # so that the part has time for a start without graphs
EAGER = "--enforce-eager"
BACK_S = 20.0  # from kill -9 of the worker until it answers again
ARRIVALS = (2.0, 2.0) if TINY else (40.0, 10.0)  # (requests a second, seconds)
STREAMS, LONG = (4, 64) if TINY else (64, 512)  # that run when the worker is killed, and their tokens
SEEN = 3  # events of each of them by then
RATES = FOLDER / "rates.json"
COMPILED = "actorserve:late_kernel_compilations_total"  # after the worker was ready
GRAMMAR = {"structured_outputs": {"regex": "[a-z ]{4,}"}}


class Answer(NamedTuple):
    ids: list[int]
    first: float  # seconds until the first token
    gaps: list[float]  # seconds between events


def prompts(count: int, seed: int) -> list[list[int]]:
    words = SHAPES[NAME]["vocab_size"]
    return np.random.default_rng(seed).integers(5, words - 5, (count, PROMPT)).tolist()  # type: ignore[no-any-return]


async def lines_of(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """As many at a time as have come: this process reads all streams, and is not to be what they wait for."""
    rest = b""
    async for piece in response.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line


async def answer(
    session: aiohttp.ClientSession, base: str, prompt: list[int], under_way: asyncio.Event | None = None, **asked: Any
) -> Answer:
    """A streamed request. `under_way` is set once some of it has come, with more behind it."""
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
    ids: list[int] = []
    times = [time.perf_counter()]
    async with session.post(
        f"{base}/v1/completions", json=body | {"stream": True, "return_token_ids": True} | asked
    ) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        async for line in lines_of(response):
            if not line.startswith(b"data: {"):
                continue
            if more := msgspec.json.decode(line[6:])["choices"][0].get("token_ids"):  # the first event has the prompt's
                times.append(time.perf_counter())
                ids += more
            if under_way is not None and len(times) > SEEN:
                under_way.set()
    gaps = [late - early for early, late in itertools.pairwise(times[1:])]
    return Answer(ids, times[1] - times[0] if len(times) > 1 else 0.0, gaps)


def connections() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=180)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))


async def burst(base: str, some: list[list[int]], asking: int = 0, **asked: Any) -> tuple[list[Answer], float]:
    """(answers, output tokens a second) of all prompts at once, of which the first `asking` ask for something."""
    async with connections() as session:
        begun = time.perf_counter()
        calls = [answer(session, base, prompt, **(asked if n < asking else {})) for n, prompt in enumerate(some)]
        answers = await asyncio.gather(*calls)
        took = time.perf_counter() - begun
    return answers, sum(len(one.ids) for one in answers) / took


async def arrivals(base: str) -> list[Answer]:
    """Requests that come one by one, at random but at a steady rate."""
    rate, seconds = ARRIVALS
    times = np.cumsum(np.random.default_rng(9).exponential(1 / rate, int(rate * seconds)))
    async with connections() as session:
        begun = time.perf_counter()

        async def one(at: float, prompt: list[int]) -> Answer:
            await asyncio.sleep(max(0.0, begun + at - time.perf_counter()))
            return await answer(session, base, prompt)

        return await asyncio.gather(*(one(at, own) for at, own in zip(times, prompts(len(times), 8), strict=True)))


def metric(base: str, name: str) -> float:
    """The sum of a metric over its labels."""
    with urllib.request.urlopen(f"{base}/metrics", timeout=10) as response:
        text = response.read().decode()
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    if not found:
        raise RuntimeError(f"no {name} among the metrics")
    return sum(map(float, found))


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def started(folder: Path, *more: str) -> Server:
    """The server on this model with these options, too, before it is ready."""
    length = str(PROMPT + max(ANSWER, LONG) + 64)
    options = ("--load-format", "dummy", "--max-num-seqs", str(max(*BATCHES, STREAMS)), "--max-model-len", length)
    command = [*LAUNCH[:-1], "launch", str(folder)]
    device = () if TINY else ("--device", "cuda")  # a CPU's figures are none of those that are asked for
    return Server(*options, "--max-num-batched-tokens", "8192", *device, *more, command=command, wait=False)


def serve(folder: Path) -> None:
    """Where it does not start, once more without CUDA graphs: what is measured then says so."""
    if not measured(folder, NAME):
        measured(folder, f"{NAME}, {EAGER}", EAGER)


def measured(folder: Path, label: str, *options: str) -> bool:
    """Whether the server was ready."""
    begun, ready = time.perf_counter(), False
    with surviving(f"{label}: the server, from start to end"), started(folder, *options) as server, told(server):
        server.wait_ready(START_S)
        ready = True
        say(f"{label}: server ready after", time.perf_counter() - begun, "s")
        for line in server.lines:
            if any(words in line for words in ("KV memory", "kernels compiled", "graphs captured")):
                say("the server says", line.strip())
        for part in (bursts, beside_grammar, compiled_late):
            with surviving(f"{label}, {part.__name__}"):
                part(server.base_url, label)
        with surviving(f"{label}, the death of the worker"):
            death(server, label)
        with surviving(f"{label}, {steady.__name__}"):  # of which nothing is asked: it may be cut
            steady(server.base_url, label)
    return ready


@contextlib.contextmanager
def told(server: Server) -> Iterator[None]:
    """In the end all that it has said is in the log, also where the part is cut: how else would one know why."""

    def tell() -> None:
        print(server.output, file=sys.stderr, flush=True)

    def cut(*_: object) -> None:
        tell()
        os._exit(1)  # threads and loops that wait for the server would not let it end in time

    before = signal.signal(signal.SIGTERM, cut)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        tell()


def bursts(base: str, name: str) -> None:
    rates: dict[int, float] = {}
    for count in BATCHES:
        for seed in (1000 + count, count):  # the first time is thrown away
            answers, rates[count] = asyncio.run(burst(base, prompts(count, seed)))
        label = f"{name}, {count} clients at once, {PROMPT} + {ANSWER} tokens"
        say(f"{label}: output", rates[count], "tokens/s")
        say(f"{label}: median time to first token", statistics.median(one.first for one in answers) * 1e3, "ms")
        events = sum(1 + len(one.gaps) for one in answers)
        say(f"{label}: events a token", events / sum(len(one.ids) for one in answers))
    RATES.write_text(json.dumps({"of": name, "rates": rates}))


def compiled_late(base: str, name: str) -> None:
    if not TINY:  # the interpreter compiles nothing
        at_most(f"{name}: kernels compiled after ready", metric(base, COMPILED), "", 0)


def steady(base: str, name: str) -> None:
    answers = asyncio.run(arrivals(base))
    gaps = [gap for one in answers for gap in one.gaps]
    label = f"{name}, {ARRIVALS[0]:g} requests a second"
    for share in (0.5, 0.99):
        say(f"{label}: time between tokens, p{share * 100:g}", quantile(gaps, share) * 1e3, "ms")
        say(f"{label}: time to first token, p{share * 100:g}", quantile([o.first for o in answers], share) * 1e3, "ms")


def beside_grammar(base: str, name: str) -> None:
    """Does a row with a grammar cost the others anything?"""
    count = min(32, max(BATCHES))
    medians = []
    for asking in (0, 1):
        answers, _ = asyncio.run(burst(base, prompts(count, 500 + asking), asking, **GRAMMAR))
        medians.append(statistics.median(gap for one in answers[1:] for gap in one.gaps))
    label = f"{name}, {count} clients, of which one asks for a grammar: time between the others' tokens"
    at_most(label, medians[1] / medians[0], "times that without", 1.1)


def death(server: Server, name: str) -> None:
    """The worker is killed while requests run: each answer is what it was without."""
    some = prompts(STREAMS, 77)
    before, _ = asyncio.run(burst(server.base_url, some, STREAMS, max_tokens=LONG))
    after, still, back = asyncio.run(_killed(server, some))
    whole = sum(len(one.ids) == LONG for one in after)
    same = sum(mine.ids == other.ids for mine, other in zip(after, before, strict=True))
    say(f"{name}: of {STREAMS} streams open when the worker was killed", still, "", "above 0", still > 0)
    say(
        f"{name}: worker killed with -9 under {STREAMS} streams: whole answers",
        whole,
        "",
        str(STREAMS),
        whole == STREAMS,
    )
    say(f"{name}: answers equal to those without a death (products of other batches round otherwise)", same)
    at_most(f"{name}: from kill -9 of the worker until it is up", back, "s", BACK_S)


async def _killed(server: Server, some: list[list[int]]) -> tuple[list[Answer], int, float]:
    """(the answers, how many were not whole when the worker was killed, seconds until it was up again)."""
    worker = server.pids()["worker"]
    async with connections() as session:
        begun = [asyncio.Event() for _ in some]
        calls = [
            asyncio.create_task(answer(session, server.base_url, prompt, under_way, max_tokens=LONG))
            for prompt, under_way in zip(some, begun, strict=True)
        ]
        all_begun = asyncio.create_task(_all(begun))
        await asyncio.wait([all_begun, *calls], return_when=asyncio.FIRST_COMPLETED)
        all_begun.cancel()
        still, killed = sum(not call.done() for call in calls), time.perf_counter()
        os.kill(worker, signal.SIGKILL)
        await asyncio.to_thread(server.wait_for, "worker is up", START_S)
        back = time.perf_counter() - killed
        return await asyncio.gather(*calls), still, back


async def _all(events: list[asyncio.Event]) -> None:
    for one in events:
        await one.wait()


def beside_transformers(folder: Path) -> None:
    """Output tokens a second of transformers' continuous batching on a model of the same shape, beside ours."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    told = RATES.read_text() if RATES.exists() else '{"of": "no server", "rates": {}}'  # it was not measured
    of, rates = (json.loads(told)[name] for name in ("of", "rates"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if TINY else torch.bfloat16
    with torch.device(device):
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    generation = GenerationConfig(max_new_tokens=ANSWER, do_sample=False, eos_token_id=-1, pad_token_id=0)
    # What it takes by itself is most of the memory that is free: of a toy's machine all other processes'.
    small = {"continuous_batching_config": ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=256)} if TINY else {}
    for count, times in AGAINST.items():
        for seed in (1, 2):  # the first makes its cache, graphs and thread, and is not counted
            some = prompts(count, 100 * seed + count)
            begun = time.perf_counter()
            out = model.generate_batch(some, generation, persistent_manager=True, **small)
            took = time.perf_counter() - begun
        model.destroy_cached_continuous_batching_manager()
        theirs = sum(len(one.generated_tokens) for one in out.values()) / took
        label = f"transformers' continuous batching (SDPA, its own graphs where it takes them), {count} sequences"
        say(f"{label}: output", theirs, "tokens/s")
        with surviving(f"this server's ({of}), {count} sequences"):
            at_least(f"this server's ({of}), {count} sequences: times as many", rates[str(count)] / theirs, "", times)


PARTS = {"server": serve, "transformers": beside_transformers}


def main(part: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        PARTS[part](write_folder(NAME, Path(root) / NAME))


if __name__ == "__main__":
    main(sys.argv[1])
