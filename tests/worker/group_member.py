"""A member of a tensor-parallel group, for tests: python group_member.py RANK SIZE MEETING STEP_S DO GO

It says what it comes to on standard output, line by line, and where it says `?` it waits for a writer of the pipe GO.
MEETING is the file that members meet by. It ends as an actor does (runtime/process.py: live), at once: threads of gloo
still run then, for which C++, where it takes itself apart, would end the process by SIGABRT.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import torch

from actorserve.actors.worker.tensor_parallel import TensorParallelGroup
from actorserve.actors.worker.torch_import import generator

SAID = "said: "
LATE = "come when it is said"
RUNNER = "runner with "  # so many drafts, of a folder
SEES = "sees as "  # a family, of a folder


def say(value: object) -> None:
    print(SAID + json.dumps(value), flush=True)


def own(rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(rank))


def main(rank: int, size: int, meeting: str, step_s: float, do: str, go: Path) -> None:
    torch.set_num_threads(1)
    fd = os.open(meeting, os.O_RDWR)
    group = TensorParallelGroup(rank, size, fd, 1, step_s=step_s)
    if do == LATE:
        say("loads")
        go.read_bytes()
    group.wait_for_all()
    say("loaded")
    say(group.minimum(10 + rank))
    if do == "sums":
        for found in (
            group.all_reduce(own(rank, 3, 5)),
            group.sum_in_order(own(rank, 7)),
            group.all_gather(own(rank, 3, 2)),
            group.maximum(own(rank, 9)),
        ):
            say(found.tolist())
    if do.startswith(RUNNER):
        sys.path.insert(0, str(Path(__file__).parents[2]))
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        from tests.support.gpu.triton_interpreter import quickly
        from tests.worker.group_runner import drawn

        drafts, folder = do.removeprefix(RUNNER).split(" ", 1)
        with quickly():
            for gather in (False, True):
                say(drawn(Path(folder), group, int(drafts), gather))
    if do.startswith(SEES):
        sys.path.insert(0, str(Path(__file__).parents[2]))
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        from tests.support.gpu.triton_interpreter import quickly
        from tests.worker.group_runner import seen

        family, folder = do.removeprefix(SEES).split(" ", 1)
        with quickly():
            say(seen(Path(folder), family, group))
    say("?")
    go.read_bytes()
    if do == "wait":
        group.all_reduce(own(rank, 1 << 16))
        say("summed")


def live(*arguments: str) -> NoReturn:
    status = 1
    try:
        rank, size, meeting, step_s, do, go = arguments
        main(int(rank), int(size), meeting, float(step_s), do, Path(go))
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    live(*sys.argv[1:])
