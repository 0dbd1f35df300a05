"""Steps of prompts alone: what each request asks for is written to shared memory when its prompt is computed.

The token that a row draws then is none: it says to the scheduler that the sequence has ended.
"""

from __future__ import annotations

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

    def write(self, row: PooledRow, hidden: Tensor) -> None:
        """`hidden`: of its tokens, or of the last one where that is enough."""
        made = self._pooler(hidden, row.ids[-len(hidden) :], row.wanted).contiguous()
        rows, columns = made.shape
        self._vectors.write(row.ref, rows, columns, made.numpy().tobytes())


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
        for row, end in zip(rows.tolist(), (last + 1).tolist(), strict=True) if self._reports else ():
            pooled = self._pooled[row]
            first = end - (len(pooled.ids) if pooled.wanted.whole else 1)
            self._writer.write(pooled, self.model.hidden(hidden[first:end]))
        self.last[rows] = ENDED
        self.known[rows] += 1
        return np.full(len(rows), ENDED, np.int32)
