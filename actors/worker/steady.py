"""Rows that decode one token each, step after step: a step computes what the last one did, a position further on.

Most steps are of this kind, and differ in a few numbers. Measured (`tools/bench_worker`, one thread of a Zen 4, 8
sequences, all but model and sampler; reading the weights leaves nothing else in the nearer caches): with a model of 4
layers of 256 prepared anew 420 µs, moved on 90; with the 0.6B shape 590 and 170.
"""

from __future__ import annotations

import numpy as np

from actorserve.kernels.sampling import Parameters

from ..messages import Step
from .flat import Inputs, Ints, Tables


class Steady:
    """A step in which each row computed one token and sampled the next, and those that follow it."""

    def __init__(self, step: Step, rows: Ints, inputs: Inputs, parameters: Parameters, tables: Tables) -> None:
        """`inputs` and the positions of `parameters` become its own."""
        self._same = step.rows, step.counts
        self.rows = rows
        self.inputs = inputs
        self.parameters = parameters
        self._tables = tables
        self._scattered = tables.scattered[rows]

    def goes_on(self, step: Step) -> bool:
        """Whether a step is of the same rows."""
        return not step.new and (step.rows, step.counts) == self._same

    def move_on(self, grown: bool) -> bool:
        """Prepare the next step. False: it has to be prepared anew. `grown`: rows have got blocks."""
        if grown and not np.array_equal(self._tables.scattered[self.rows], self._scattered):
            return False
        if not self.inputs.attention.advance():  # as it does where a row whose blocks are scattered needs the next one
            return False
        for values in (self.inputs.positions, self.inputs.slots, self.parameters.position):
            values += 1
        return True
