"""The text part of a model that sees pictures, by this server's own layers.

Tokens of pictures differ from those of texts in what the first layer is given, in how they are turned (three positions
each), in what is added behind the first layers (deepstack), and in what they see (all of their own picture). A step
without any goes the way of any other model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cpu.executor import CpuModel
from ..cpu.layers.rotation import rotation_table
from ..cpu.memory.states import StepStates
from ..cpu.memory.window_tables import AnyKV
from .attention import PictureAttention
from .step import VisionStep


class SeeingModel(CpuModel):
    """Its caller sets `step` before each forward pass."""

    step: VisionStep | None = None

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: AnyKV,
        attention: Any,
        states: StepStates | None = None,
    ) -> Tensor:
        """As CpuModel."""
        step = self.step
        turns = positions if step is None or step.turns is None else step.turns
        plain = step is None or (step.at is None and turns.dim() == 1 and int(turns.max()) < len(self.rotations[0]))
        if step is None or plain:
            return super().forward(ids, turns, slots, kv, attention, states)
        x = self.embedded(ids)
        if step.at is not None:
            x[step.at] = step.rows.to(x.dtype)  # type: ignore[union-attr]
            if self.shape.scales_inputs and self.embedding_scale != 1:
                x[step.at] *= self.embedding_scale
        if step.runs:
            attention = PictureAttention(attention, step.runs)
        rotations = [self._rotations(index, turns)[:, None] for index in range(len(self.rotations))]
        growth = self.grown(positions)
        for number, (layer, kind) in enumerate(zip(self.layers, self.rotation_of, strict=True)):
            layer(x, rotations[kind], slots, kv, attention, growth=growth)
            if number < len(step.deepstack):
                x[step.at] += step.deepstack[number].to(x.dtype)
        return x

    def _rotations(self, index: int, turns: Tensor) -> Tensor:
        """A row for each token."""
        most = int(turns.max()) + 1
        if most > len(self.rotations[index]):  # films are further apart in time than their tokens are many
            rope = self.shape.rope_kinds()[0][index] or self.shape.rope
            self.rotations[index] = rotation_table(rope, self.shape.turning, 2 * most)
        table = self.rotations[index]
        if turns.dim() == 1:
            return table[turns]
        assert self.shape.vision is not None
        axes = torch.tensor(self.shape.vision.axes)
        return table[turns[axes].T, torch.arange(len(axes))].contiguous()
