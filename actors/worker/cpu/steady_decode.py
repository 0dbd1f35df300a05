"""Rows that decode one token each, step after step: a step computes what the last one did, a position further on.

Most steps are of this kind, and differ in a few numbers. Measured (`tools/bench/worker`, one thread of a Zen 4, 8
sequences, all but model and sampler; reading the weights leaves nothing else in the nearer caches): with a model of 4
layers of 256 prepared anew 420 µs, moved on 90; with the 0.6B shape 590 and 170.
"""

from __future__ import annotations

from collections.abc import Callable

from actorserve.kernels.cpu.sampling import Parameters

from ...protocol.step import Step
from .batch import BatchInputs, Ints


class SteadyDecode:
    """A step in which each row computed one token and sampled the next, and those that follow it."""

    def __init__(
        self,
        step: Step,
        rows: Ints,
        inputs: BatchInputs,
        parameters: Parameters,
        prepare: Callable[[Ints, Ints], BatchInputs],
    ) -> None:
        """`inputs` and the positions of `parameters` become its own; `prepare` makes inputs of positions and tokens."""
        self._step = step
        self._prepare = prepare
        self.rows = rows
        self.counts = step.counts  # with room for drafts
        self.has_room = bool((self.counts > 1).any())
        self.inputs = inputs
        self.parameters = parameters

    def goes_on(self, step: Step) -> bool:
        """Whether a step is of the same rows."""
        return step.repeats(self._step)

    def move_on(self, scattered: bool) -> None:
        """Prepare the next step. `scattered`: a row has got a block that does not follow its last one."""
        moved = not scattered and self.inputs.attention.advance()
        for values in (self.parameters.position, self.inputs.positions, self.inputs.slots):
            values += 1
        if not moved:
            self.inputs = self._prepare(self.inputs.positions, self.inputs.ids)
