"""Which rows decode in the next step of a pipeline: other ones than in the steps before it.

A row's next token cannot be computed before the one before it is drawn, by the last stage. So that no stage waits for
that, the rows that decode are divided over as many steps as there are stages: a step has an equal share of them, those
that have waited longest, and none that drew in one of the steps that are still in other stages. Parts of a prompt need
no drawn token: they follow one another at once, through all stages.

Where nobody else is there, a row's next step is planned while the one before it runs, as without a pipeline: the first
stage then waits for the token, which comes to it straight from the last.
"""

from __future__ import annotations

import numpy as np

from ..batch import Ints, RunningBatch

ALONE_AHEAD = 2  # steps in flight of the same rows


class MicroBatches:
    """Of one batch."""

    def __init__(self, stages: int, batch: RunningBatch) -> None:
        self._stages, self._batch = stages, batch
        self._drew = np.zeros(batch.size, np.int64)  # by row: in which plan
        self._plan = 0  # the last one's number
        self.ahead = 0  # steps in flight

    @property
    def may_repeat(self) -> bool:
        """May the same rows have another step?"""
        return self.ahead < ALONE_AHEAD

    def share(self, decoding: int) -> int:
        """Rows of a step, of so many that decode."""
        return -(-decoding // self._stages)

    def ready(self, decode: Ints) -> Ints:
        """Those of them whose tokens are drawn by the time when the first stage needs them."""
        waits = self._plan + 1 - self._drew[decode] < self._stages
        return decode[~(waits & (self._batch.num_in_flight_tokens[decode] > 0))]

    def choose(self, decode: Ints, alone: bool) -> Ints:
        """Those of the next step, rising; `alone`: there is nothing else to compute."""
        rows = self.ready(decode)
        if not len(rows) and alone and self.may_repeat:
            rows = decode
        longest = np.argsort(self._drew[rows], kind="stable")[: self.share(len(decode))]
        chosen: Ints = np.sort(rows[longest])
        return chosen

    def planned(self, drawing: Ints) -> None:
        """A step is planned, in which these rows draw."""
        self._plan += 1
        self._drew[drawing] = self._plan
