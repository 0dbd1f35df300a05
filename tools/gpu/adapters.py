"""What LoRA adapters cost a step: rows of several adapters, of one and of none, with the same weights, in one run.

without     the graphs that there are without adapters, of a worker that could have some: what they cost who has none
adapters    the graphs with them: two launches more for each product, of which one is beside it
loading     the same while a thread writes adapters into a slot that no row has: no step should wait for that
"""

from __future__ import annotations

import statistics
import threading
import time

import torch

from .profile import profiled
from .report import TINY, at_most, say, surviving
from .shapes import Bench, capture_graphs, compile_kernels

NAME, RANK = ("tiny", 4) if TINY else ("Qwen3-0.6B", 16)
ROWS, ADAPTERS, SLOTS = (2, (1, 2), 3) if TINY else (8, (1, 4, 8), 9)
CONTEXT, STEPS, TURNS = (40, 2, 1) if TINY else (1024, 40, 5)
CHUNK = 16 if TINY else 512
GOAL = 1.25  # times as long as without, with 4 adapters
LOADING = 1.1
ASKED = 2 if TINY else 4  # adapters of which the goal is


def decoding(bench: Bench, adapters: int) -> float:
    """Seconds of a step in which all rows decode."""
    bench.runner.run(bench.step(bench.place(ROWS, CONTEXT - 1, CONTEXT, adapters=adapters), [1] * ROWS))
    bench.decode(ROWS, 2)
    begun = time.perf_counter()
    bench.decode(ROWS, STEPS)
    return (time.perf_counter() - begun) / STEPS


def prefilling(bench: Bench, adapters: int) -> float:
    """Seconds of a step of two chunks."""
    new = bench.place(2, 0, 2 * CHUNK, adapters=adapters)
    bench.runner.run(bench.step(new, [CHUNK // 2] * 2))
    begun = time.perf_counter()
    bench.runner.run(bench.step([], [CHUNK // 2] * 2))
    return time.perf_counter() - begun


def times(bench: Bench) -> None:
    """Each by turns, and the median of the turns."""
    took: dict[int, list[float]] = {count: [] for count in (0, *ADAPTERS)}
    chunks: dict[int, list[float]] = {0: [], 2: []}
    for _ in range(TURNS):
        for count, own in took.items():
            own.append(decoding(bench, count))
        for count, own in chunks.items():
            own.append(prefilling(bench, count))
    plain = statistics.median(took[0])
    say(f"{NAME}, {ROWS} rows, no adapter: a step", plain * 1e3, "ms")
    for count in ADAPTERS:
        what = f"{NAME}, {ROWS} rows, {count} adapters of rank {RANK}: times as long as none"
        at_most(what, statistics.median(took[count]) / plain, "", GOAL if count == ASKED else None)
    share = statistics.median(chunks[2]) / statistics.median(chunks[0])
    at_most(f"{NAME}, {CHUNK} tokens of prompts, 2 adapters: times as long as none", share, "", GOAL)


def loading(bench: Bench) -> None:
    """Steps beside a thread that does nothing but write another adapter."""
    alone, loads, over = decoding(bench, ASKED), [0], threading.Event()

    def write() -> None:
        with torch.inference_mode():
            while not over.is_set():
                bench.load(SLOTS, RANK)
                loads[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    beside = decoding(bench, ASKED)
    over.set()
    thread.join()
    at_most(
        f"{NAME}, a step while adapters are loaded ({loads[0]} of them): times as long", beside / alone, "", LOADING
    )


def main() -> None:
    with torch.inference_mode():
        bench = Bench(NAME, ROWS, 2 * CONTEXT, CHUNK, adapters=SLOTS, rank=RANK)
        compile_kernels(bench.runner, f"{NAME}, with adapters")
        capture_graphs(bench.runner, f"{NAME}, with adapters and without")
        with surviving("steps with adapters"):
            times(bench)
        with surviving("steps while adapters are loaded"):
            loading(bench)
        if torch.cuda.is_available():
            adapted = bench.runner.adapted
            assert adapted is not None
            took = decoding(bench, ASKED)
            profiled(f"{NAME}, {ASKED} adapters", lambda: adapted.decoding.step(ROWS), took, bench.shape.layers)


if __name__ == "__main__":
    main()
