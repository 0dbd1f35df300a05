"""Hidden states of some layers, kept for what goes on from them (worker/gpu/drafts/recurrent.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class ResidualTaps:
    """Copies of the residual stream before some layers, of the last step; their number stands for behind all."""

    def __init__(self, layers: Sequence[int], kept: Tensor) -> None:
        """`kept`: where they go, [tokens, those of all layers side by side]."""
        self.layers = layers
        self._parts = kept.unflatten(1, (len(layers), -1)).unbind(1)

    def keep(self, layer: int, residual: Tensor, added: Tensor | None = None) -> None:
        """If this layer is one of them; `added` is still to be added to the stream."""
        for part, own in zip(self._parts, self.layers, strict=True):
            if own != layer:
                continue
            if added is None:
                part[: len(residual)].copy_(residual)
            else:
                torch.add(residual, added, out=part[: len(residual)])
