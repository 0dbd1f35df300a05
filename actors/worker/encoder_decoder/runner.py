"""The batch of an encoder–decoder: rows whose log begins with what their encoder reads.

What a row has read follows from its slot alone: its ids, or the sound that lies with the slot. So a row that is placed
again, by this worker or its successor, reads again; keys and values of what was read lie in the row's first blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.paged_kv import PagedKV
from actorserve.kernels.cpu.pool_memory import Pool

from ...model.encoder_decoder.spec import EncoderSpec
from ...protocol.request import Rendition
from ...protocol.step import NewRow
from ..cpu.batch import BatchInputs
from ..cpu.runner import CpuRunner, Ints
from .listening import Listening
from .model import EncoderDecoder, RowInput
from .rows_kv import AnyRowsKV, RowsKV

Sounds = Callable[[int], Tensor]  # the features [1, …] of a ref's sound


class EncoderDecoderRunner(CpuRunner):
    """Runs steps on one model and its KV memory."""

    def __init__(
        self,
        model: EncoderDecoder,
        spec: EncoderSpec,
        pools: Sequence[Pool] | AnyRowsKV,
        log: np.ndarray,
        block_size: int,
        rows: int,
        *parts: Any,
        sounds: Sounds | None = None,
    ) -> None:
        """`parts` as CpuRunner has them; `sounds` of a model that listens."""
        super().__init__(model, pools, log, block_size, rows, *parts)
        self.reader, self.spec, self.sounds = model, spec, sounds
        self.read, self.refs = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._views: AnyRowsKV
        if isinstance(pools, Sequence):
            assert isinstance(self.kv, PagedKV)
            self._views = RowsKV(self.kv, PagedKV(model.kv, pools, block_size, False, model.dtype, self._library))
        else:
            self._views = pools
        self.logits_processors.speech = spec.speech
        self.listening: Listening | None = None

    def _render(self, row: int, new: NewRow) -> Rendition:
        rendition = super()._render(row, new)
        self.read[row], self.refs[row] = rendition.encoder, new.ref
        return rendition

    def _begin(self, row: int) -> int:
        return self.spec.room(self.block_size, int(self.read[row]))

    def _forward(self, inputs: BatchInputs, rows: Ints, starts: Ints, counts: Ints) -> Tensor:
        spans = getattr(inputs.attention, "spans")  # noqa: B009 (of a Spans: the model's own)
        given = [self._input(row, start == 0) for row, start in zip(rows.tolist(), starts.tolist(), strict=True)]
        ids, slots = torch.from_numpy(inputs.ids), torch.from_numpy(inputs.slots)
        return self.reader.compute(ids, slots, self._views, spans, given)

    def _input(self, row: int, reads: bool) -> RowInput:
        features = self.sounds(int(self.refs[row])) if reads and self.sounds is not None else None
        return RowInput(int(self.read[row]), features)
