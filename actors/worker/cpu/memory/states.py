"""What layers keep of a sequence as a whole (convolutions, linear attention): a place for each row, and for snapshots.

A row's states are those behind its first `length[row]` tokens; with a length of 0 there are none, whatever the memory
holds of the row's last tenant. They cannot be taken back by a token: who goes on elsewhere than where they stand begins
anew, or at a snapshot, which is a copy of them at the end of a block.

All of it dies with the worker, and the scheduler computes rows again from their logs; nothing here is found by a
successor. Knows tensors and rows; not why a snapshot is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....model.memory.kv import StateSpec

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]


class RowStates:
    """The states of all rows of a batch, and those of the snapshots behind them."""

    def __init__(
        self,
        specs: Iterable[StateSpec],
        rows: int,
        snapshots: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        """`dtype` is the model's."""
        self.rows, self.snapshots = rows, snapshots
        self.length = np.zeros(rows + snapshots, np.int64)  # tokens behind which they stand; 0: there are none
        self._memory: dict[tuple[int, str], Tensor] = {}
        for spec in specs:
            own = dtype if spec.dtype is None else getattr(torch, spec.dtype)
            self._memory[spec.layer, spec.name] = torch.zeros(rows + snapshots, *spec.shape, dtype=own, device=device)

    def __bool__(self) -> bool:
        return bool(self._memory)

    def memory(self, layer: int, name: str) -> Tensor:
        """Of all rows and snapshots."""
        return self._memory[layer, name]

    def get(self, layer: int, name: str, rows: Ints | Tensor) -> Tensor:
        """A copy of the rows' states [rows, *shape]; without meaning for a row that has none. `rows` are a tensor where
        the states are on a device."""
        return self._memory[layer, name][rows if isinstance(rows, Tensor) else torch.from_numpy(rows)]

    def put(self, layer: int, name: str, rows: Ints | Tensor, values: Tensor) -> None:
        """The rows' new states; who computes a step stores all of them, then the runner says how far they are."""
        self._memory[layer, name][rows if isinstance(rows, Tensor) else torch.from_numpy(rows)] = values

    def check(self, rows: Ints, starts: Sequence[int] | Ints) -> None:
        """ValueError unless the rows' states stand at these positions."""
        length = self.length[rows]
        if not np.array_equal(length, starts):
            raise ValueError(f"states stand at tokens {length.tolist()}, and the step goes on at {list(starts)}")

    def begin(self, row: int, computed: int, snapshot: int) -> None:
        """Another sequence takes the row: it has computed so many tokens, and goes on from a snapshot (-1: none)."""
        self.length[row] = 0
        if snapshot >= 0:
            self._copy(self.rows + snapshot, row)
        if self.length[row] != computed:
            raise ValueError(f"row {row} is to go on at token {computed}, and its states stand at {self.length[row]}")

    def save(self, row: int, snapshot: int) -> None:
        """A copy of the row's states, for others that begin alike."""
        self._copy(row, self.rows + snapshot)

    def _copy(self, source: int, target: int) -> None:
        for memory in self._memory.values():
            memory[target] = memory[source]
        self.length[target] = self.length[source]


class StepStates(NamedTuple):
    """The states of one step's rows, in the order of its spans."""

    states: RowStates
    rows: Ints
    fresh: Bools  # which have none yet

    @classmethod
    def of(cls, states: RowStates, rows: Ints, starts: Sequence[int] | Ints) -> StepStates:
        """`starts` are the positions from which on the step computes; there the states must stand."""
        states.check(rows, starts)
        return cls(states, rows, states.length[rows] == 0)
