"""Drafts that Medusa's heads say, on a GPU; see worker/speculative/medusa.py and model/heads/formats.py.

They read the model's hidden state of the last token that was computed and counts, of which the token drawn last was
made. It is kept for each row at the end of a step, when the device knows how many tokens count. A row that was just
taken has that of another until its first step ends: its drafts mean nothing then, which costs time alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.kernels.triton.drafts import DraftState
from actorserve.kernels.triton.step_inputs import StepInputs

from ....model.heads.formats import MedusaShape, block_name, out_name
from ...models.sharding import Get
from ...quantization.base import GpuLinear
from ...quantization.none import CublasLinear
from ..executor import GpuModel
from .ahead import AheadDraftingRunner
from .speculation import DraftingSampler


class MedusaHead(NamedTuple):
    """One of them."""

    blocks: tuple[GpuLinear, ...]
    out: GpuLinear | None  # None: the model's own

    def logits(self, x: Tensor, target: GpuModel) -> Tensor:
        """Logits of the token that it says, of the model's last hidden states."""
        for block in self.blocks:
            x = x + F.silu(block(x))
        return target.logits(x) if self.out is None else self.out(x)


def load_heads(shape: MedusaShape, get: Get, target: GpuModel, count: int) -> list[MedusaHead]:
    """The first `count`."""

    def tensor(name: str) -> Tensor:
        return get(name).to(target.device, target.dtype, copy=True)

    def linear(name: str, biased: bool) -> CublasLinear:
        return CublasLinear(tensor(name), tensor(f"{name.removesuffix('weight')}bias") if biased else None)

    return [
        MedusaHead(
            tuple(linear(block_name(head, block), shape.biased) for block in range(shape.blocks)),
            linear(out_name(head), False) if shape.own_outs else None,
        )
        for head in range(count)
    ]


class MedusaSampler(DraftingSampler):
    """Keeps what the heads read."""

    def begin(self, drafts: DraftState, inputs: StepInputs) -> None:
        super().begin(drafts, inputs)
        rows = len(drafts.drafted)
        self.states = torch.zeros(rows + 1, self.normed.shape[1], dtype=self.normed.dtype, device=self.device)

    def _keep_drawn(self, size: int) -> None:
        """Of each row's tokens the last one that counts; what is nobody's goes behind all rows."""
        super()._keep_drawn(size)
        rows, index = self._at.drawing[:size], self._index[:size]
        before = torch.cat([torch.full_like(rows[:1], -1), rows[:-1]])
        first = (rows >= 0) & (rows != before)
        last = (index + self._outcome[:size, 0] - 1).where(first, 0)
        self.states.index_copy_(0, rows.where(first, len(self.states) - 1), self.normed.index_select(0, last))


class MedusaDraftingRunner(AheadDraftingRunner):
    """Rows have drafts of heads."""

    sampler_type: ClassVar[type[DraftingSampler]] = MedusaSampler

    def __init__(self, *given: Any, heads: Sequence[MedusaHead], **named: Any) -> None:
        """As DraftingRunner; one head for each draft."""
        super().__init__(*given, **named)
        assert len(heads) == self.sizes.drafts
        self.heads = heads

    def _draft(self, size: int) -> None:
        assert isinstance(self.sampler, MedusaSampler)
        states = self.sampler.states.index_select(0, self._at.drafting[:size].clamp(min=0))
        for number, head in enumerate(self.heads):
            self._say(number, size, head.logits(states, self.model))
