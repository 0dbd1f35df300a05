"""Steps of whole prompts, of a model that keeps nothing of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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
        hidden = self._model.hidden([Text(row.ids, row.second) for row in rows])
        for row, states in zip(rows, hidden, strict=True):
            self._writer.write(row, states)
        return np.full(len(rows), ENDED, np.int32)
