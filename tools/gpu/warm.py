"""Compile what other parts time, many kernels at a time, into Triton's cache, where they find it.

Each kind of runner has a process of its own, for which a layer is enough, since all have the same kernels; and so have
some divisions of what parts launch by itself. Nothing is timed meanwhile.

    python -m tools.gpu.warm
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import torch

from .report import COMPILED, TINY
from .steps import PLANS, TOKENS, kinds_of, size_of

from .shapes import Bench  # isort: skip
from actorserve.actors.worker.gpu.compilations import compile_ahead  # isort: skip

THREADS = 2  # of each kind's process
NICE = 10  # below the part that runs meanwhile, which is cut when its time is over
NAMES = ("tiny",) if TINY else ("Llama-3.1-8B", "Qwen3-0.6B")
# Parts, and among how many processes:
DIVIDED = {"tools.gpu.experts": 5, "tools.gpu.products": 4, "tools.gpu.kernels.latents": 2}


def compile_kind(name: str, kind: str) -> None:
    """All that a runner of this kind launches."""
    with torch.inference_mode():
        plan = PLANS[name]
        runner = Bench(name, *size_of(plan), TOKENS, layers=1, **kinds_of(plan)[kind]).runner
        compile_ahead(runner.device, runner.profile_steps, runner.try_graphs, threads=THREADS)


def jobs() -> Iterator[tuple[list[str], dict[str, str]]]:
    """Arguments of python, and what is in the environment beside."""
    for name in NAMES:
        for kind in kinds_of(PLANS[name]):
            yield ["tools.gpu.warm", name, kind], {}
    for part, count in DIVIDED.items():
        for number in range(count):
            yield [part], {COMPILED: f"{number}/{count}"}


def main() -> int:
    """What one of the processes cannot do, its part will say."""
    os.nice(NICE)
    started = [subprocess.Popen([sys.executable, "-m", *job], env={**os.environ, **more}) for job, more in jobs()]
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    compile_kind(*sys.argv[1:])
