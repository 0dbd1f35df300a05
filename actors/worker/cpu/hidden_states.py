"""Rows whose requests are told hidden states: what a step has computed of them goes to shared memory.

All of it follows from the slot, so that a row is told alike after a preemption or any death.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from actorserve.shm.table.hidden_states import HiddenStates

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


class HiddenStatesWriter:
    """Of all rows of the batch."""

    def __init__(self, area: HiddenStates, norm: Callable[[Tensor], Tensor], is_current: Callable[[int], bool]) -> None:
        """`norm` is what the last layer's output goes through before logits are made of it; `is_current` says of a ref
        whether its slot is not another request's by now.
        """
        self._area, self._norm, self._is_current = area, norm, is_current
        self._refs: dict[int, int] = {}

    def place(self, row: int, ref: int, wanted: bool) -> None:
        """A sequence takes a row."""
        self._refs.pop(row, None)
        if wanted:
            self._refs[row] = ref

    def write(self, rows: Ints, starts: Ints, counts: Ints, hidden: Tensor) -> None:
        """`hidden`: the last layer's output of a step, of each row `counts` tokens from the position in `starts` on."""
        if not self._refs:
            return
        firsts = np.cumsum(counts) - counts
        for row, start, count, first in zip(*(v.tolist() for v in (rows, starts, counts, firsts)), strict=True):
            ref = self._refs.get(row)
            if ref is not None and self._is_current(ref):
                states = self._norm(hidden[first : first + count]).float().contiguous()
                self._area.write_rows(ref, start, count, states.shape[1], states.numpy().tobytes())
