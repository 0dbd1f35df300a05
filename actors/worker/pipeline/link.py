"""What the stages of a pipeline send each other: hidden states to the next stage, drawn tokens from the last to the
first. Of a tensor-parallel group each member sends to the one of its own rank, since all have the same.

    stage i    hidden states of a step's tokens, [tokens, hidden size]  ->  stage i + 1
    the last   the step's drawn tokens, int32, where there are some     ->  the first

Both ends know from the step how much there is, and of which step it is: what is sent of one is never taken for that of
another (`begin` gives it a number). All read the same steps in the same order from their ring, so who waits is waited
for, and never in a circle: who sends does not wait until it is received, unless MOST steps are on their way already.

If a stage dies, the connection ends, and whoever waits raises; so it does after --step-timeout if one stands still. The
supervisor kills and starts all of a group together (tensor_parallel.py). NCCL would do the same between GPUs, where
workers have no stages yet.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ...protocol.step import Step
from ..tensor_parallel import MEET_S, MeetingPlace, TensorParallelGroup, least, meet

MOST_NUMBER = 1 << 30  # of a step, as gloo's tags take it


class Arriving(Protocol):
    """What another stage sends, and may not have come yet."""

    def wait(self) -> np.ndarray:
        """It; RuntimeError if it does not come."""


class StageLink(Protocol):
    """A stage's place, and its connections."""

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def begin(self, step: Step) -> None:
        """What is sent and received from now on is of this step."""

    def take_waited(self) -> float:
        """Seconds for which it waited for others since the last time."""

    def send(self, hidden: Tensor) -> None:
        """To the next stage; it must not be changed any more."""

    def receive(self, tokens: int, width: int, dtype: torch.dtype) -> Tensor:
        """From the stage before."""

    def send_tokens(self, tokens: np.ndarray) -> None:
        """From the last stage to the first."""

    def expect_tokens(self, count: int) -> Arriving:
        """Of this step, in the first stage."""


class _Tokens:
    """Arriving, through torch."""

    def __init__(self, stage: Stage, tokens: Tensor, work: dist.Work) -> None:
        self._stage, self._tokens, self._work = stage, tokens, work

    def wait(self) -> np.ndarray:
        self._stage.wait_for(self._work)
        return self._tokens.numpy()


class Stage:
    """A StageLink by torch.distributed."""

    def __init__(
        self,
        stages: int,
        size: int,
        worker: int,
        meeting_fd: int,
        life: int,
        step_s: float,
        place: MeetingPlace | None = None,
    ) -> None:
        """`worker` of stages · size, stage by stage; `place` where they are on several machines; the rest as of
        TensorParallelGroup. Returns when all are here.
        """
        self.index, rank = divmod(worker, size)
        self.count = stages
        meet(worker, stages * size, meeting_fd, life, None, place)
        self.group = _group(stages, size, self.index, rank, step_s) if size > 1 else None
        self._step_s, self._timeout = step_s, timedelta(seconds=step_s)
        self._before, self._behind = worker - size, worker + size
        self._first, self._last = rank, (stages - 1) * size + rank
        self._number = 0
        self._sent: deque[tuple[dist.Work, Tensor]] = deque()
        self._waited = 0.0

    def minimum(self, number: int) -> int:
        """As of a TensorParallelGroup."""
        return least(number, self._step_s)

    def begin(self, step: Step) -> None:
        self._number = (step.epoch * 10_007 + step.step) % MOST_NUMBER

    def send(self, hidden: Tensor) -> None:
        self._send(hidden.contiguous(), self._behind)

    def receive(self, tokens: int, width: int, dtype: torch.dtype) -> Tensor:
        hidden = torch.empty(tokens, width, dtype=dtype)
        self.wait_for(self._receive(hidden, self._before))
        return hidden

    def send_tokens(self, tokens: np.ndarray) -> None:
        self._send(torch.from_numpy(np.array(tokens, np.int32)), self._first)

    def expect_tokens(self, count: int) -> Arriving:
        tokens = torch.empty(count, dtype=torch.int32)
        return _Tokens(self, tokens, self._receive(tokens, self._last))

    def take_waited(self) -> float:
        waited, self._waited = self._waited, 0.0
        return waited

    def wait_for(self, work: dist.Work) -> None:
        """RuntimeError if the other end is gone, or stands still for longer than a step may take."""
        began = time.perf_counter()
        work.wait(self._timeout)
        self._waited += time.perf_counter() - began

    def _receive(self, into: Tensor, worker: int) -> dist.Work:
        work = dist.irecv(into, worker, tag=self._number)
        assert work is not None
        return work

    def _send(self, what: Tensor, worker: int) -> None:
        while len(self._sent) > self.count + 1:
            oldest, _ = self._sent.popleft()
            self.wait_for(oldest)
        work = dist.isend(what, worker, tag=self._number)
        assert work is not None
        self._sent.append((work, what))


def _group(stages: int, size: int, stage: int, rank: int, step_s: float) -> TensorParallelGroup:
    """The workers of this stage; all workers have to make all groups."""
    wait = timedelta(seconds=MEET_S)
    groups = [dist.new_group([*range(first, first + size)], timeout=wait) for first in range(0, stages * size, size)]
    return TensorParallelGroup.among(rank, size, step_s, groups[stage])
