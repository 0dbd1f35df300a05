"""A worker that computes nothing (`--worker scripted`): tokens by a formula, at once, so that what is left is the cost
of all other actors. It has no weights, no KV memory and no torch; the scheduler's blocks are numbers.
"""

from __future__ import annotations

import time

import numpy as np

from actorserve.shm.table.table import slot_of

from ..protocol.step import Step
from ..runtime.process import Context
from .actor import WorkerActor

FIRST = 256  # tokens below are special ones, or single bytes, of most tokenizers
STRIDE = 7919  # a prime


class ScriptedRunner:
    """The bookkeeping of a runner, and a formula."""

    failed_rows = ()

    def __init__(self, rows: int, words: int, step_s: float) -> None:
        """`step_s`: how long a step takes."""
        self.step_s = step_s
        self.computed, self.known, self.slot = (np.zeros(rows, np.int64) for _ in range(3))
        self.first = min(FIRST, words // 2)
        self.span = words - self.first

    def run(self, step: Step) -> np.ndarray:
        """The tokens (int32) of the rows that sample: each follows from slot and position alone."""
        for new in step.new_rows:
            self.computed[new.row], self.known[new.row], self.slot[new.row] = (
                new.num_computed_tokens,
                new.num_known_tokens,
                slot_of(new.ref),
            )
        rows = step.rows
        ends = self.computed[rows] + step.counts
        self.computed[rows] = ends
        drawing = rows[ends == self.known[rows]]
        tokens = self.first + (self.slot[drawing] * 31 + self.known[drawing]) * STRIDE % self.span
        self.known[drawing] += 1
        if self.step_s:
            time.sleep(self.step_s)  # the part of the device
        return np.asarray(tokens, np.int32)


def start(context: Context) -> WorkerActor:
    """As many blocks as could ever be used."""
    words = context.model.vocab_size
    runner = ScriptedRunner(context.config.max_num_seqs, words, context.config.scripted_step_ms / 1e3)
    return WorkerActor(context, runner, context.system.max_blocks)
