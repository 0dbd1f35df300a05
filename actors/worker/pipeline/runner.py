"""Runners of a pipeline's stages: all keep the same rows, by the same steps; who draws is the last.

A stage before the last knows how many tokens each row has, for each row that samples draws one, and not which: these
go from the last stage to the first, which needs them when it computes them, and waits for them then. The scheduler sees
to it that other rows come between (scheduler/policy/micro_batches.py).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import numpy as np
from torch import Tensor

from ...protocol.request import Sampling
from ...protocol.step import NewRow, Step
from ..cpu.batch import BatchInputs
from ..cpu.runner import CpuRunner, Ints
from ..cpu.steady_decode import SteadyDecode
from .link import Arriving, StageLink

NOTHING_ASKED = Sampling(0)


class EarlyStageRunner(CpuRunner):
    """Of a stage before the last: it draws nothing."""

    def __init__(self, link: StageLink, *parts: Any) -> None:
        """`parts` as of CpuRunner."""
        super().__init__(*parts)
        self.link = link
        self._draws = link.index == 0  # its rows need tokens
        self._coming: deque[tuple[Arriving, Ints]] = deque()  # drawn tokens of these rows, step by step
        self._missing = np.zeros(len(self.last), np.int64)  # by row: tokens that it has there

    def run(self, step: Step) -> np.ndarray:
        self.link.begin(step)
        while len(self._coming) > self.link.count + 1:
            self._take()
        return super().run(step)

    def _forward(self, inputs: BatchInputs, rows: Ints, starts: Ints, counts: Ints) -> Tensor:
        hidden = super()._forward(inputs, rows, starts, counts)
        self.link.send(hidden)
        return hidden

    def _run_steady(self, step: Step, steady: SteadyDecode, scattered: bool) -> np.ndarray:
        rows = steady.rows
        steady.move_on(scattered)
        if self._draws:
            self._wait_for(rows)
            steady.inputs.ids[:] = self.last[rows]
        self._forward(steady.inputs, rows, steady.inputs.positions, steady.counts)
        return self._will_draw(rows)

    def _settle(self) -> None:
        last = self.last.copy()  # what a row computes next comes from the last stage, and may be there already
        super()._settle()
        self.last[:] = last

    def _sample(self, hidden: Tensor, rows: Ints, last: Ints, drafted: Ints) -> np.ndarray:
        self.known[rows] += 1
        return self._will_draw(rows)

    def _will_draw(self, rows: Ints) -> np.ndarray:
        """The last stage will draw a token of each; zeros stand for them."""
        if self._draws and rows.size:
            self._coming.append((self.link.expect_tokens(len(rows)), rows.copy()))
            self._missing[rows] += 1
        return np.zeros(len(rows), np.int32)

    def _wait_for(self, rows: Ints) -> None:
        """Until the tokens of these are there. Those of a row that another sequence had are written over by its own,
        which come later.
        """
        while self._missing[rows].any():
            self._take()

    def _take(self) -> None:
        arriving, rows = self._coming.popleft()
        self.last[rows] = arriving.wait()
        self._missing[rows] -= 1

    def _inputs(self, rows: Ints, counts: Ints, starts: Ints) -> BatchInputs:
        if self._draws:
            self._wait_for(rows)
        return super()._inputs(rows, counts, starts)

    def _place(self, new: NewRow) -> None:
        super()._place(msgspec.structs.replace(new, sampling=NOTHING_ASKED))


class LastStageRunner(CpuRunner):
    """Of the last stage: it draws, and tells the first."""

    def __init__(self, link: StageLink, *parts: Any) -> None:
        """`parts` as of CpuRunner."""
        super().__init__(*parts)
        self.link = link

    def run(self, step: Step) -> np.ndarray:
        self.link.begin(step)
        tokens = super().run(step)
        if tokens.size:
            self.link.send_tokens(tokens)
        return tokens


def make_stage_runner(link: StageLink, *parts: Any) -> EarlyStageRunner | LastStageRunner:
    """That of this stage; `parts` as of CpuRunner."""
    return (LastStageRunner if link.index == link.count - 1 else EarlyStageRunner)(link, *parts)
