"""What a worker compiles that is the first on its machine, and how long it takes; without a GPU, too.

There Triton compiles as ever, for a driver that stands in for a device (tests/support/gpu/no_device.py), and nothing is
loaded. One thread shows what each kernel takes, of which the longest bounds any number of threads.

    python -m tools.gpu.cold [--threads 1] [--model Qwen3-0.6B]
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import triton

from .report import at_most, say
from .shapes import Bench

from actorserve.actors.model.memory.machine import usable_cores  # isort: skip
from actorserve.actors.worker.gpu.compilations import compile_ahead  # isort: skip
from tests.support.gpu.no_device import NoDevice  # isort: skip

LIMIT_S = 5.0  # on 16 cores
ROWS, LENGTH, TOKENS = 64, 4096, 2048


def children() -> float:
    """CPU seconds of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(took: dict[str, list[float]]) -> Callable[..., Any]:
    """Compiles as Triton does, and says what that took; one at a time."""
    plain = triton.compiler.compile

    def compile_(source: Any, *given: Any, **named: Any) -> Any:
        begun = time.thread_time() + children()
        made = plain(source, *given, **named)
        took.setdefault(source.name, []).append(time.thread_time() + children() - begun)
        return made

    return compile_


def compile_all(model: str, threads: int) -> tuple[int, float]:
    """(how many kernels, seconds) of a runner of the model's shape with one layer, as a worker has them compiled."""
    with torch.inference_mode():
        runner = Bench(model, ROWS, LENGTH, TOKENS, layers=1).runner
        begun = time.perf_counter()
        count = compile_ahead(runner.device, runner.profile_steps, runner.try_graphs, threads=threads)
        return count, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--model", default="Qwen3-0.6B", help="whose shape it is")
    options = parser.parse_args()
    took: dict[str, list[float]] = {}
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        triton.runtime.driver.set_active(NoDevice())
    if options.threads == 1:
        triton.compiler.compile = timed(took)
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir = folder
        before = sum(os.times()[:4])
        count, seconds = compile_all(options.model, options.threads)
        used = sum(os.times()[:4]) - before
    goal = LIMIT_S if torch.cuda.is_available() and options.threads >= 16 else None
    at_most(f"{options.model}: {count} kernels compiled by {options.threads} threads", seconds, "s", goal)
    say("CPU time, all of the process", used, "s")
    for name, own in sorted(took.items(), key=lambda one: -max(one[1])):
        say(f"{name}, {len(own)} of them: CPU time of the longest", max(own), "s")
    if took:
        say("CPU time of all kernels together", sum(map(sum, took.values())), "s")


if __name__ == "__main__":
    main()
