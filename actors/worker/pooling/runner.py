"""Steps of prompts alone: what each request asks for is written to shared memory when its prompt is computed.

The token that a row draws then is none: it says to the scheduler that the sequence has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from actorserve.shm.table.table import slot_of
from actorserve.shm.table.vectors import Vectors

from ...protocol.request import Pooling
from ...protocol.step import NewRow
from ..cpu.runner import CpuRunner, Ints
from .decoder import HiddenModel
from .poolers import Pooler

if TYPE_CHECKING:
    from ..vision.rows import VisionRows

ENDED = 0  # the token that is none


@dataclass(frozen=True)
class PooledRow:
    """What is known of a row's sequence."""

    ref: int
    wanted: Pooling
    ids: Tensor
    second: int = 0


class PoolingWriter:
    """Makes what requests ask for, and writes it."""

    def __init__(self, pooler: Pooler, vectors: Vectors, log: np.ndarray) -> None:
        self._pooler, self._vectors, self._log = pooler, vectors, log

    def row(self, new: NewRow, second: int = 0) -> PooledRow:
        """A sequence takes a row."""
        wanted = new.sampling.pooling
        assert wanted is not None, "a request that generates has come to a model that pools"
        ids = self._log[slot_of(new.ref), : new.num_prompt_tokens].astype(np.int64)
        return PooledRow(new.ref, wanted, torch.from_numpy(ids), second)

    def write(self, rows: Sequence[PooledRow], hidden: Sequence[Tensor]) -> None:
        """`hidden`: of each row's tokens, or of the last one where that is enough; what a GPU has made comes by one
        copy."""
        ids = [row.ids[-len(states) :] for row, states in zip(rows, hidden, strict=True)]
        made = self._pooler(hidden, ids, [row.wanted for row in rows])
        for row, numbers in zip(rows, _on_host(made), strict=True):
            count, columns = numbers.shape
            self._vectors.write(row.ref, count, columns, numbers.contiguous().numpy().tobytes())


def _on_host(made: list[Tensor]) -> list[Tensor]:
    if not made or made[0].device.type == "cpu":
        return made
    whole = torch.cat([numbers.flatten() for numbers in made]).cpu()
    parts = whole.split([numbers.numel() for numbers in made])
    return [part.view(numbers.shape) for part, numbers in zip(parts, made, strict=True)]


class HiddenRunner(CpuRunner):
    """The CpuRunner of a decoder, whose rows draw no tokens."""

    model: HiddenModel

    def __init__(
        self, writer: PoolingWriter, *args: Any, vision: VisionRows | None = None, reports: bool = True
    ) -> None:
        """`args`: the CpuRunner's; `reports`: this one of its group writes what all of them have made."""
        super().__init__(*args)
        self.vision, self._reports = vision, reports
        self._writer = writer
        self._pooled: dict[int, PooledRow] = {}

    def _place(self, new: NewRow) -> None:
        super()._place(new)
        self._pooled[new.row] = self._writer.row(new)

    def _sample(self, hidden: Tensor, rows: Ints, last: Ints, drafted: Ints) -> np.ndarray:
        if self._reports:
            pooled, ends = [self._pooled[row] for row in rows.tolist()], (last + 1).tolist()
            sizes = [len(row.ids) if row.wanted.whole else 1 for row in pooled]
            parts = [hidden[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            self._writer.write(pooled, [self.model.hidden(part) for part in parts])
        self.last[rows] = ENDED
        self.known[rows] += 1
        return np.full(len(rows), ENDED, np.int32)
