"""A member of a tensor-parallel group, for tests: python -m tests.worker.group_member RANK SIZE FD STEP_S DO

It says what it comes to on standard output, line by line, and waits for a line on standard input where it says `?`. It
ends as an actor does (runtime/process.py: live), at once: threads of gloo still run then, for which C++, where it takes
itself apart, would end the process by SIGABRT.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

import torch

from actorserve.actors.worker.tensor_parallel import TensorParallelGroup


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


def own(rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank))


def main(rank: int, size: int, fd: int, step_s: float, do: str) -> None:
    torch.set_num_threads(1)
    group = TensorParallelGroup(rank, size, fd, 1, step_s=step_s)
    say(group.minimum(10 + rank))
    if do == "sums":
        for found in (
            group.all_reduce(own(rank, 3, 5)),
            group.sum_in_order(own(rank, 7)),
            group.all_gather(own(rank, 3, 2)),
        ):
            say(found.tolist())
    say("?")
    sys.stdin.readline()
    if do == "wait":
        group.all_reduce(own(rank, 1 << 16))
        say("summed")


def live(*arguments: str) -> NoReturn:
    status = 1
    try:
        rank, size, fd = map(int, arguments[:3])
        main(rank, size, fd, float(arguments[3]), arguments[4])
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    live(*sys.argv[1:])
