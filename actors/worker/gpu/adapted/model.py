"""A decoder of transformers on a GPU, as the runner there has its models: all tokens of a step side by side, products
by the model's own modules, attention by Triton's kernels over the pools.

What the modules' Python does between kernels may wait for the device, so no graph holds it: steps are started kernel
by kernel.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from actorserve.kernels.pages import Scoring
from actorserve.kernels.triton.rotary_kv import Pools, RotaryTables

from ...adapter.hooks import NAME, attending, use_attention
from ...adapter.passes import Passes
from ...adapter.probe import Traits
from ..executor import GpuBatch, GpuModel, Hidden
from .shape import AdaptedShape
from .step import DeviceStep


class AdaptedGpuModel(GpuModel):
    """See GpuModel, of whose own parts it has none."""

    eager: ClassVar[bool] = True

    def __init__(
        self, model: PreTrainedModel, traits: Traits, shape: AdaptedShape, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`model`: on the device, with all its weights."""
        self.traits, self.shape, self.dtype, self.device = traits, shape, dtype, device
        self.group, self.lora, self.taps, self.fused = None, None, None, None
        self.batch_invariant = False
        self.table_of = [0] * len(shape.kv.layers)
        self.scorings = [
            Scoring(layer.scale, layer.window, layer.soft_cap, layer.chunk) for layer in shape.kv.layers if layer
        ]
        self.passes = Passes(model)
        use_attention(model, NAME)
        self.unturned = RotaryTables(torch.ones(1, 1, device=device), torch.zeros(1, 1, device=device))

    def forward(self, batch: GpuBatch, pools: list[Pools]) -> Hidden:
        inputs = batch.inputs
        step = DeviceStep(self.traits.asked, self.scorings, batch.by_layer(self.table_of), pools, self.unturned)
        with attending(step):
            cache = self.traits.caches.make(step)
            answer = self.passes.hidden(inputs.ids[None], inputs.positions[None], cache)[0]
        return Hidden(answer, answer[:, :0])  # nothing is left to be added

    def norm(self, hidden: Hidden, out: Tensor | None = None) -> Tensor:
        """It was normed as the last part of the decoder."""
        return hidden.added if out is None else out.copy_(hidden.added)

    def own_logits(self, normed: Tensor) -> Tensor:
        return self.passes.logits(normed)
