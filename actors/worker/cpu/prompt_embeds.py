"""Rows whose prompts are embeddings: what a step is given in the place of its first tokens' own.

All is read from the slot when it is computed, so that a row goes on alike after a preemption or any death.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.shm.table.prompt_embeds import PromptEmbeds

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


class StepEmbeds(NamedTuple):
    """Of a step's flat batch."""

    at: Tensor  # which tokens
    rows: Tensor  # float32, in the place of their embeddings


class RowEmbeds:
    """Of all rows of the batch."""

    def __init__(self, area: PromptEmbeds, rows: int) -> None:
        self._area = area
        self._refs: dict[int, int] = {}
        self._ends = np.zeros(rows, np.int64)  # behind the last embedding of each row's prompt

    def place(self, row: int, ref: int) -> int:
        """A sequence takes a row; how many of its first tokens are embeddings."""
        found = self._area.given(ref)
        count = self._ends[row] = 0 if found is None else found[0]
        self._refs[row] = ref
        return int(count)

    def step(self, rows: Ints, starts: Ints, counts: Ints, hidden: int) -> StepEmbeds | None:
        """For these rows' next `counts` tokens from `starts` on; None where all of them have tokens."""
        some = np.flatnonzero(starts < self._ends[rows])
        if not some.size:
            return None
        firsts = np.cumsum(counts) - counts
        at, parts = [], []
        for index in some.tolist():
            row, start = int(rows[index]), int(starts[index])
            count = min(int(counts[index]), int(self._ends[row]) - start)
            found = self._area.some(self._refs[row], start, count)
            if found is None:  # its client has gone, and the slot is another's by now: nobody is told of it
                continue
            parts.append(torch.frombuffer(bytearray(found), dtype=torch.float32).view(count, hidden))
            at.append(np.arange(count) + firsts[index])
        return StepEmbeds(torch.from_numpy(np.concatenate(at)), torch.cat(parts)) if at else None
