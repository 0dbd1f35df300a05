"""Steps of whole prompts, of a model that keeps nothing of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...protocol.request import Rendition
from ...protocol.step import Step
from .encoder import Encoder, Text
from .runner import ENDED, PooledRow, PoolingWriter


class EncoderRunner:
    """Implements StepRunner for whole prompts without KV memory."""

    failed_rows = ()

    def __init__(
        self, model: Encoder, writer: PoolingWriter, rows: int, read_rendition: Callable[[int], Rendition]
    ) -> None:
        self._model, self._writer = model, writer
        self._rows: list[PooledRow | None] = [None] * rows
        self._read_rendition = read_rendition

    def run(self, step: Step) -> np.ndarray:
        for new in step.new_rows:
            self._rows[new.row] = self._writer.row(new, self._read_rendition(new.ref).second)
        rows = [row for index in step.rows.tolist() if (row := self._rows[index]) is not None]
        assert [len(row.ids) for row in rows] == step.counts.tolist(), "a prompt was cut"
        in_parts(self._pool, rows)
        return np.full(len(rows), ENDED, np.int32)

    def _pool(self, rows: Sequence[PooledRow]) -> None:
        self._writer.write(rows, self._model.hidden([Text(row.ids, row.second) for row in rows]))


def in_parts(compute: Callable[[Sequence[PooledRow]], None], rows: Sequence[PooledRow]) -> None:
    """All rows at once, or in halves where a GPU has no room for that, so that a large one takes none along. Raises
    torch.OutOfMemoryError of one for which there is none at all.
    """
    if not rows:
        return
    try:
        compute(rows)
        return
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise
    torch.cuda.empty_cache()  # behind the error, which holds what the step had
    middle = len(rows) // 2
    in_parts(compute, rows[:middle])
    in_parts(compute, rows[middle:])
