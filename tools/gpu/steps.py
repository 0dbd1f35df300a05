"""How long steps of known models take, with random weights, and how near that is to the bytes and the products in them.

decode      a token a row: the floor is the bytes of weights and KV over the measured copy
asking      the same, where one row or all ask for more than the best token: what that costs
mixed       rows that decode, and the chunk of a prompt: the floor is bytes or products, whichever takes longer
prefill     a prompt alone: the floor is its products over the measured one
ragged      rows that decode, of which one has a long context (kernels/ragged.py)
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from . import ceilings
from .kernels.ragged import ragged
from .profile import profiled
from .report import TINY, at_least, at_most, say, surviving
from .shapes import ASKING, Bench, capture_graphs, compile_kernels, flops_a_token, kv_bytes, weight_bytes

from actorserve.actors.worker.gpu.graphs import size_for  # isort: skip
from actorserve.actors.worker.gpu.runner import GpuRunner  # isort: skip
from actorserve.kernels.triton.linear.gemv import MOST_ROWS  # isort: skip
from actorserve.kernels.triton.quantised_kv import E4M3, supported  # isort: skip

CONTEXT = 64 if TINY else 1024
WARM, STEPS = (1, 2) if TINY else (5, 40)
TOKENS = 2048  # of a step
MOST = CONTEXT + 8 * STEPS + 64  # tokens of a row: rows are placed anew before they are full


@dataclass(frozen=True)
class Plan:
    """What is timed of one model."""

    batches: tuple[int, ...]
    roofline: dict[int, float]  # batch size: the share that is wanted
    quantised: tuple[int, ...] = ()  # batch sizes with keys and values of 8 bits
    asking: tuple[int, ...] = ()
    mixed: tuple[tuple[int, int], ...] = ()  # (rows that decode, tokens of the chunk)
    chunks: tuple[int, ...] = ()  # of prompts alone
    ragged: int = 0  # rows, one of which is long


MIXED = ((32, 16), (32, 128), (32, 512), (128, 128), (32, 1024))
PLANS = {
    "Llama-3.1-8B": Plan((1, 8, 32, 128, 256), {1: 0.8, 8: 0.8, 32: 0.8}, (32, 256), (), MIXED, (4096, 8192)),
    "Qwen3-0.6B": Plan((1, 8, 32, 128, 256), {32: 0.55}, (), (32,), MIXED, (8192,), 64),
    "tiny": Plan((1, 4), {}, (), (2,), ((1, 16),), (16,), 2),
}
OVERHEAD_US = 40.0  # a layer, beyond the bytes' own time, at batch sizes of 1 and 8
BUSY = {"decode": 0.97, "mixed": 0.9}
HOST_MS = {"decode": 0.05, "mixed": 0.5}
CAPTURED_S = 10  # all graphs
PREFILL = 0.6  # of the product's rate


looks: dict[str, list[Callable[[Bench], None]]] = defaultdict(list)  # at kernels, by kind of the runner


def clocked(call: Callable[[], object], times: int) -> float:
    """Seconds of one of so many calls in a row."""
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begun) / times


def decode(bench: Bench, label: str, rows: int, limits: dict[str, float], goal: float | None, kind: str = "") -> None:
    """`kind` of the runner: its kernels are looked at one by one, too, once all is timed."""
    runner, shape = bench.runner, bench.shape
    runner.run(bench.step(bench.place(rows, CONTEXT - 1, CONTEXT), [1] * rows))
    step = bench.seconds(rows, WARM, STEPS)
    host = launching(bench, rows)
    size = size_for(runner.decoding.sizes, rows) or rows
    alone = ceilings.seconds(lambda: replay(runner, size))
    stored = runner.pools[0].keys.dtype
    moved = weight_bytes(shape, bench.dtype.itemsize) + kv_bytes(shape, rows * (CONTEXT + STEPS), stored.itemsize)
    floor = moved / limits["bytes"]
    label = f"{label}, decode, batch {rows}, {CONTEXT} of context"
    say(f"{label}: a step", step * 1e3, "ms")
    say(f"{label}: tokens", rows / step, "/s")
    at_least(f"{label}: share of the roofline", floor / step, "", goal)
    at_most(
        f"{label}: beyond the bytes, a layer",
        (step - floor) / shape.layers * 1e6,
        "us",
        OVERHEAD_US if rows <= 8 else None,
    )
    at_least(f"{label}: device busy", min(1.0, alone / step), "", BUSY["decode"])
    at_most(f"{label}: host work a step", host * 1e3, "ms", HOST_MS["decode"])
    if kind:
        looks[kind].append(lambda other: kernels_of_decoding(other, label, rows, alone))


def kernels_of_decoding(bench: Bench, label: str, rows: int, alone: float) -> None:
    """`alone`: what they take together, as they were timed."""
    runner = bench.runner
    runner.run(bench.step(bench.place(rows, CONTEXT - 1, CONTEXT), [1] * rows))
    size = size_for(runner.decoding.sizes, rows) or rows
    profiled(label, lambda: replay(runner, size), alone, bench.shape.layers)


def replay(runner: GpuRunner, size: int) -> None:
    """What a step of decoding gives the device, from row numbers to tokens."""
    runner.decoding.step(size)
    runner.sampler.plain.step(size)


def launching(bench: Bench, rows: int) -> float:
    """The median seconds that the host takes to start a step of decoding."""
    host = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        pending = bench.runner.launch(bench.step([], [1] * rows))
        host.append(time.perf_counter() - begun)
        bench.runner.finish(pending)
    return statistics.median(host)


def asking(bench: Bench, name: str, rows: int) -> None:
    """Decode steps in which one row, or all, ask for something, beside those in which none does."""

    def took(ask: dict[int, object]) -> float:
        bench.runner.run(bench.step(bench.place(rows, CONTEXT - 1, CONTEXT, ask), [1] * rows))  # type: ignore[arg-type]
        return bench.seconds(rows, WARM, STEPS)

    plain = took({})
    for kind, sampling in ASKING.items():
        for count in (1,) if TINY else (1, rows):
            what = f"{name}, batch {rows}, {kind} of {count}: times as long as without"
            at_most(what, took(dict.fromkeys(range(count), sampling)) / plain, "", 1.1 if count == 1 else None)
            if kind == "logprobs":
                told = sum(bench.told.read(row, CONTEXT, 1)[0][0] > 0 for row in range(count))
                say(f"{name}, {kind}: rows that were told, of {count} that ask", told, "", str(count), told == count)


class MixedSteps:
    """Steps in which `rows` decode, and the last row takes a chunk of a prompt that goes on behind it."""

    def __init__(self, bench: Bench, rows: int, chunk: int) -> None:
        self.bench, self.rows, self.chunk = bench, rows, chunk
        bench.runner.run(bench.step(bench.place(rows, CONTEXT - 1, CONTEXT), [1] * rows))

    def step(self) -> float:
        """Start one; the seconds that this takes the host."""
        runner = self.bench.runner
        new = self.bench.place(1, 0, self.chunk + 1, first=self.rows)
        planned = self.bench.step(new, [1] * self.rows + [self.chunk])
        begun = time.perf_counter()
        runner.launch(planned)
        took = time.perf_counter() - begun
        if len(runner.pending) > 1:
            runner.finish(runner.pending[0])
        return took

    def run(self, count: int) -> list[float]:
        """So many, to the end of the last."""
        host, runner = [self.step() for _ in range(count)], self.bench.runner
        while runner.pending:
            runner.finish(runner.pending[0])
        return host


def mixed(bench: Bench, name: str, rows: int, chunk: int, limits: dict[str, float]) -> None:
    shape, steps = bench.shape, MixedSteps(bench, rows, chunk)
    steps.run(WARM)
    begun = time.perf_counter()
    host = steps.run(STEPS)
    took = (time.perf_counter() - begun) / STEPS
    itemsize = bench.dtype.itemsize
    moved = weight_bytes(shape, itemsize) + kv_bytes(shape, rows * (CONTEXT + STEPS) + chunk, itemsize)
    floor = max(moved / limits["bytes"], (rows + chunk) * flops_a_token(shape) / limits["flops"])
    label = f"{name}, mixed, {rows} rows and a chunk of {chunk}"
    say(f"{label}: a step", took * 1e3, "ms")
    say(f"{label}: share of the roofline", floor / took)
    at_most(f"{label}: host work a step", statistics.median(host) * 1e3, "ms", HOST_MS["mixed"])
    looks["usual"].append(lambda other: kernels_of_mixed(MixedSteps(other, rows, chunk), label, took))


def kernels_of_mixed(steps: MixedSteps, label: str, took: float) -> None:
    busy = profiled(label, lambda: steps.run(1), took, steps.bench.shape.layers)
    if torch.cuda.is_available():
        at_least(f"{label}: device busy", min(1.0, busy), "", BUSY["mixed"])


def prefill(bench: Bench, name: str, tokens: int, limits: dict[str, float]) -> None:
    runner, shape = bench.runner, bench.shape

    def run() -> None:
        runner.run(bench.step(bench.place(1, 0, tokens), [tokens]))

    run()
    took = clocked(run, 2)
    attention = 2 * tokens * tokens * shape.heads * shape.head_dim * shape.layers  # half of it is masked
    rate = (tokens * flops_a_token(shape) + attention) / took
    say(f"{name}, prefill of {tokens}: tokens", tokens / took, "/s")
    at_least(f"{name}, prefill of {tokens}: share of the product's rate", rate / limits["flops"], "", PREFILL)


def captured(bench: Bench, name: str) -> None:
    if torch.cuda.is_available():
        compile_kernels(bench.runner, name)
        capture_graphs(bench.runner, name, CAPTURED_S)


def free() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def kinds_of(plan: Plan) -> dict[str, dict[str, Any]]:
    """Runners that are timed, each compiled in its own way, and what Bench makes them of."""
    kinds: dict[str, dict[str, Any]] = {"usual": {}, "fused": {"fused": True}}
    if plan.quantised and supported(torch.device("cuda")):
        kinds["8-bit KV"] = {"kind": E4M3}
    return kinds


def size_of(plan: Plan) -> tuple[int, int]:
    """(rows, tokens of each) of the largest; of the 8B with its weights less than 64 GB."""
    rows = max(*plan.batches, *(rows + 1 for rows, _ in plan.mixed))
    return rows, max(MOST, *(chunk + 1 for _, chunk in plan.mixed))


def usual(name: str, plan: Plan, limits: dict[str, float]) -> None:
    bench = Bench(name, *size_of(plan), TOKENS)
    captured(bench, name)
    for batch in plan.batches:
        with surviving(f"{name}, decode, batch {batch}"):
            decode(bench, name, batch, limits, plan.roofline.get(batch), "usual" if batch in (1, 32) else "")
    for batch in plan.asking:
        with surviving(f"{name}, rows that ask, batch {batch}"):
            asking(bench, name, batch)
    for count, chunk in plan.mixed:
        with surviving(f"{name}, mixed, {count} rows and a chunk of {chunk}"):
            mixed(bench, name, count, chunk, limits)


def quantised(name: str, plan: Plan, limits: dict[str, float]) -> None:
    kind = kinds_of(plan).get("8-bit KV")
    if kind is None:
        return
    bench = Bench(name, max(plan.quantised), MOST, TOKENS, **kind)
    captured(bench, f"{name}, 8-bit KV")
    for batch in plan.quantised:
        with surviving(f"{name}, 8-bit KV, decode, batch {batch}"):
            looked_at = "8-bit KV" if batch == max(plan.quantised) else ""
            decode(bench, f"{name}, 8-bit KV", batch, limits, None, looked_at)


def fused(name: str, plan: Plan, limits: dict[str, float]) -> None:
    """Small steps by products of our own: they should be the usual way where they are quicker here than above."""
    batches = [batch for batch in plan.batches if batch <= MOST_ROWS]
    bench = Bench(name, max(batches), MOST, TOKENS, **kinds_of(plan)["fused"])
    assert bench.runner.model.fused is not None
    captured(bench, f"{name}, fused")
    for batch in batches:
        with surviving(f"{name}, fused, decode, batch {batch}"):
            decode(bench, f"{name}, fused", batch, limits, plan.roofline.get(batch), "fused" if batch == 1 else "")


def prompts(name: str, plan: Plan, limits: dict[str, float]) -> None:
    bench = Bench(name, 1, max(plan.chunks) + 64, max(plan.chunks))
    for chunk in plan.chunks:
        with surviving(f"{name}, prefill of {chunk}"):
            prefill(bench, name, chunk, limits)


def one_long(name: str, plan: Plan, limits: dict[str, float]) -> None:
    if plan.ragged:
        ragged(name, plan.ragged, CONTEXT, WARM, STEPS)


def kernels_of(bench: Bench, label: str, own: list[Callable[[Bench], None]]) -> None:
    for look in own:
        with surviving(label):
            look(bench)


def kernels(name: str, plan: Plan, limits: dict[str, float]) -> None:
    """What takes the time, kernel by kernel, as without graphs: whoever was profiled is slower ever after."""
    for kind, own in looks.items():
        with surviving(f"{name}, {kind}: kernels"):
            kernels_of(Bench(name, *size_of(plan), TOKENS, **kinds_of(plan)[kind]), f"{name}, {kind}: kernels", own)
        gc.collect()
        free()


# What is served comes first: an error of the device ends whatever the process would measure behind it.
ORDER = (usual, prompts, quantised, one_long, fused, kernels)


def main(name: str) -> None:
    limits, plan = ceilings.known(), PLANS[name]
    with torch.inference_mode():
        for part in ORDER:
            with surviving(f"{name}, {part.__name__}"):
                part(name, plan, limits)
            gc.collect()
            free()


if __name__ == "__main__":
    main(sys.argv[1])
