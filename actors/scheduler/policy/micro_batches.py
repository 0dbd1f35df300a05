"""Which rows decode in the next step of a pipeline: where it pays other ones than in the steps before it.

A row's next token cannot be computed before the one before it is drawn, by the last stage. So that no stage waits for
that, the rows that decode are divided over as many steps as there are stages: a step has an equal share of them, those
that have waited longest, and none that drew in one of the steps that are still in other stages. Parts of a prompt need
no drawn token: they follow one another at once, through all stages.

For a step with fewer rows a stage reads all of its weights, too. With T(n) seconds of n rows in a stage, s stages give
n tokens in s · T(n) as one step and in s · T(n / s) divided, for which they compute s · T(n / s) / T(n) times as long.
So rows are divided where that is quicker by GAIN, by what steps took lately (step_cost.py); where that is not known,
both are done in turns of TRIAL plans. Undivided, the next step is planned while the one before it runs, as without a
pipeline: the first stage then waits for the tokens, which come to it straight from the last.
"""

from __future__ import annotations

import numpy as np

from ..batch import Ints, RunningBatch
from .step_cost import StepCost

ALONE_AHEAD = 2  # steps in flight of the same rows
GAIN = 1.2
TRIAL = 12


class MicroBatches:
    """Of one batch."""

    def __init__(self, stages: int, batch: RunningBatch, cost: StepCost) -> None:
        """`cost` of steps in which rows decode, in one stage."""
        self._stages, self._batch, self._cost = stages, batch, cost
        self._drew = np.zeros(batch.size, np.int64)  # by row: in which plan
        self._plan = 0  # the last one's number
        self.ahead = 0  # steps in flight

    @property
    def may_repeat(self) -> bool:
        """May the same rows have another step?"""
        return self.ahead < ALONE_AHEAD

    def share(self, decoding: int) -> int:
        """Rows of a step, of so many that decode."""
        fewer = -(-decoding // self._stages)
        gain = self._cost.gain(decoding, fewer)
        divided = self._plan // TRIAL % 2 == 0 if gain is None else gain >= GAIN
        return fewer if divided else decoding

    def ready(self, decode: Ints) -> Ints:
        """Those of them whose tokens are drawn by the time when the first stage needs them."""
        waits = self._plan + 1 - self._drew[decode] < self._stages
        return decode[~(waits & (self._batch.num_in_flight_tokens[decode] > 0))]

    def choose(self, decode: Ints, alone: bool) -> Ints:
        """Those of the next step, rising; `alone`: there is nothing else to compute."""
        rows, share = self.ready(decode), self.share(len(decode))
        if share == len(decode):
            return decode if self.may_repeat or len(rows) == len(decode) else decode[:0]
        if not len(rows) and alone and self.may_repeat:
            rows = decode
        longest = np.argsort(self._drew[rows], kind="stable")[:share]
        chosen: Ints = np.sort(rows[longest])
        return chosen

    def has_ready(self, decode: Ints) -> bool:
        """Whether a step of some of them needs no token of one that is in flight."""
        found = len(self.ready(decode))
        return found > 0 and (found == len(decode) or self.share(len(decode)) < len(decode))

    def planned(self, drawing: Ints) -> None:
        """A step is planned, in which these rows draw."""
        self._plan += 1
        self._drew[drawing] = self._plan
