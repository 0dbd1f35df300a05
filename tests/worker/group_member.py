"""A member of a tensor-parallel group, for tests: python -m tests.worker.group_member RANK SIZE FD STEP_S DO

It says what it comes to on standard output, line by line, and waits for a line on standard input where it says `?`.
"""

from __future__ import annotations

import json
import sys

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
        return
    say("?")
    sys.stdin.readline()
    group.all_reduce(own(rank, 1 << 16))
    say("summed")


if __name__ == "__main__":
    rank, size, fd = map(int, sys.argv[1:4])
    main(rank, size, fd, float(sys.argv[4]), sys.argv[5])
