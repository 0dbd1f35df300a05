"""What tokens of one step have of pictures, sent to the device before its first layer: embeddings and what is added
behind layers, by what they turn, and how far they see. gpu/pictures.py has the same where graphs read it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.paged_kv import Span
from actorserve.kernels.triton.rotary_kv import RotaryTables
from actorserve.kernels.triton.vision.axis_turns import AXES, AxisTurns, turn_by_axes
from actorserve.kernels.triton.vision.given_rows import GivenRows

from ...model.vision.spec import VisionSpec
from ..gpu.executor import GpuBatch, GpuModel
from ..gpu.pictures import axis_turns
from ..transfer import to_device
from ..vision.step import Run, VisionStep


class EagerPictures:
    """Of one model."""

    def __init__(self, spec: VisionSpec, model: GpuModel, length: int) -> None:
        """`length`: of the longest sequence."""
        self._spec, self._device, self._dtype = spec, model.device, model.dtype
        self._hidden = model.shape.hidden_size
        self._turns: AxisTurns | None = axis_turns(spec, model, length) if spec.axes else None

    def among(self, batch: GpuBatch, step: VisionStep | None, spans: list[Span]) -> GpuBatch:
        """A step with what its tokens have."""
        if step is None:
            return batch
        tokens = len(batch.inputs.ids)
        if step.at is not None and step.rows is not None:
            batch = batch._replace(given=self._given(tokens, step.at, (step.rows, *step.deepstack)))
            if self._spec.whole_pictures:
                batch = batch._replace(ends=self._ends(tokens, spans, step.runs))
        if self._turns is None or step.turns is None:
            return batch
        return self._turned(batch, self._turns, step.turns)

    def try_out(self, batch: GpuBatch) -> GpuBatch:
        """A step whose tokens have all that there may be."""
        tokens = len(batch.inputs.ids)
        rows = torch.zeros(tokens, self._hidden, dtype=self._dtype, device=self._device)
        turns = torch.arange(tokens).expand(AXES, -1) if self._turns is not None else None
        runs = (Run(0, 0, tokens),)
        step = VisionStep(turns, torch.arange(tokens), rows, (rows,) * self._spec.deepstack, runs)
        return self.among(batch, step, [Span(0, tokens, 0, np.zeros(0, np.int32), False)])

    def _given(self, tokens: int, at: Tensor, parts: tuple[Tensor, ...]) -> GivenRows:
        places = np.full(tokens, -1)
        places[at.numpy()] = np.arange(len(at))
        embeddings, *behind = (part.to(self._dtype) for part in parts)
        none = embeddings.new_zeros(0, *embeddings.shape)
        return GivenRows(to_device(places, self._device), embeddings, torch.stack(behind) if behind else none)

    def _ends(self, tokens: int, spans: list[Span], runs: tuple[Run, ...]) -> Tensor:
        ends = np.zeros(tokens, np.int64)
        for run in runs:
            begin = spans[run.span].first - spans[run.span].position
            ends[begin + run.start : begin + run.end] = run.end
        return to_device(ends, self._device)

    def _turned(self, batch: GpuBatch, by: AxisTurns, turns: Tensor) -> GpuBatch:
        """Tables by token, in which a token's number is its position."""
        tokens, pairs = len(batch.inputs.ids), len(by.frequencies)
        places = to_device(np.ascontiguousarray(turns.expand(AXES, -1).numpy().T), self._device)
        tables = RotaryTables(*torch.empty(2, tokens, pairs, device=self._device))
        turn_by_axes(torch.zeros(tokens, dtype=torch.int64, device=self._device), places, by, tables)
        own = torch.arange(tokens, device=self._device)
        return batch._replace(inputs=batch.inputs._replace(positions=own), turned=tables)
