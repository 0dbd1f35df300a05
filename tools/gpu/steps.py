"""How long steps of known models take, with random weights, and how near that is to the bytes and the products in them.

A decode step's floor is bytes of weights and KV over the measured copy; a prefill's is FLOPs over the measured product.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from . import ceilings
from .report import TINY, at_least, at_most, say
from .shapes import Bench, flops_a_token, weight_bytes

CONTEXT = 64 if TINY else 1024
STEPS = 3 if TINY else 40
CHUNKS = (16,) if TINY else (4096, 8192)
PLANS = {  # model: (batch sizes, {batch size: share of the roofline that is wanted})
    "Qwen3-0.6B": ((1, 8, 32, 128, 256), {32: 0.55}),
    "Llama-3.1-8B": ((1, 8, 32, 128, 256), {1: 0.8, 32: 0.8}),
    "Qwen3-8B": ((1, 32), {}),
    "tiny": ((1, 4), {}),
}
OVERHEAD_US = 40.0  # a layer, beyond the bytes' own time, at batch sizes of 1 and 8
BUSY = 0.97
HOST_MS = 1.0


def decode(bench: Bench, name: str, rows: int, goals: dict[int, float], limits: dict[str, float]) -> None:
    runner, shape = bench.runner, bench.shape
    runner.run(bench.step(bench.place(rows, CONTEXT - 1, CONTEXT), [1] * rows))
    bench.decode(rows, 5)
    begun = time.perf_counter()
    bench.decode(rows, STEPS)
    step = (time.perf_counter() - begun) / STEPS
    host = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        pending = runner.launch(bench.step([], [1] * rows))
        host.append(time.perf_counter() - begun)
        runner.finish(pending)
    size = runner.graphs.size_for(rows) or rows
    alone = ceilings.seconds(lambda: runner.graphs.step(size))
    itemsize = bench.dtype.itemsize
    kv = rows * (CONTEXT + STEPS) * 2 * shape.kv_heads * shape.head_dim * shape.layers * itemsize
    floor = (weight_bytes(shape, itemsize) + kv) / limits["bytes"]
    label = f"{name}, decode, batch {rows}, {CONTEXT} of context"
    say(f"{label}: a step", step * 1e3, "ms")
    say(f"{label}: tokens", rows / step, "/s")
    if rows in goals:
        at_least(f"{label}: share of the roofline", floor / step, "", goals[rows])
    else:
        say(f"{label}: share of the roofline", floor / step)
    overhead = (step - floor) / shape.layers * 1e6
    if rows <= 8:
        at_most(f"{label}: beyond the bytes, a layer", overhead, "us", OVERHEAD_US)
    at_least(f"{label}: device busy", min(1.0, alone / step), "", BUSY)
    at_most(f"{label}: host work a step", statistics.median(host) * 1e3, "ms", HOST_MS)


def prefill(bench: Bench, name: str, tokens: int, limits: dict[str, float]) -> None:
    runner, shape = bench.runner, bench.shape

    def run() -> None:
        runner.run(bench.step(bench.place(1, 0, tokens), [tokens]))

    run()
    begun = time.perf_counter()
    for _ in range(2):
        run()
    took = (time.perf_counter() - begun) / 2
    attention = 2 * tokens * tokens * shape.heads * shape.head_dim * shape.layers  # half of it is masked
    rate = (tokens * flops_a_token(shape) + attention) / took
    label = f"{name}, prefill of {tokens}"
    say(f"{label}: tokens", tokens / took, "/s")
    at_least(f"{label}: share of the product's rate", rate / limits["flops"], "", 0.6)


def main(name: str) -> None:
    limits = ceilings.known()
    sizes, goals = PLANS[name]
    longest = max(CONTEXT + 4 * STEPS + 64, *(chunk + 64 for chunk in CHUNKS))
    with torch.inference_mode():
        bench = Bench(name, max(sizes), CONTEXT + 4 * STEPS + 64, max(CHUNKS))
        if torch.cuda.is_available():
            begun = time.perf_counter()
            bench.runner.graphs.capture()
            took, count = time.perf_counter() - begun, len(bench.runner.graphs.sizes)
            at_most(f"{name}: {count} graphs captured in", took, "s", 10)
        for rows in sizes:
            decode(bench, name, rows, goals, limits)
        del bench
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        bench = Bench(name, 1, longest, max(CHUNKS))
        for chunk in CHUNKS:
            prefill(bench, name, chunk, limits)


if __name__ == "__main__":
    main(sys.argv[1])
