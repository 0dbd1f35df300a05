"""Steps of up to 8 tokens, with norms, the gate and additions in their products (kernels/triton/linear/gemv.py).

Seven launches a layer in place of ten:
    norm, qkv · rotate, write KV · attention (and merge of splits) · out, add · norm, gate-up, silu·mul · down, add
Not measured on a GPU yet, so that cuBLAS stays until `tools/gpu_check` has timed both; it sets `fused` for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.gemv import MOST_ROWS, TABLE, NormBefore, Workspace, gemv, programmatic_launch
from actorserve.kernels.triton.rotary_kv import Pools, RotaryTables

from ...quantization.none import CublasLinear
from .taps import ResidualTaps

if TYPE_CHECKING:
    from ..executor import GpuBatch, GpuLayer

FUSED = False  # the one switch: whether models take this way
PROCESSORS = 132  # that there are taken to be where there is no GPU


class FusedLayer(NamedTuple):
    """A layer, and its products' tensors."""

    layer: GpuLayer
    qkv: CublasLinear
    out: CublasLinear
    gate_up: CublasLinear
    down: CublasLinear

    @classmethod
    def of(cls, layer: GpuLayer) -> FusedLayer | None:
        """None if it has experts, a part of its weights, or some of another kind or of a type that takes no norm."""
        if layer.moe is not None:
            return None
        products = [one for one in (layer.qkv, layer.out, layer.gate_up, layer.down) if isinstance(one, CublasLinear)]
        plain = len(products) == 4 and all(one.weight.dtype != torch.float16 for one in products)
        return cls(layer, *products) if plain and layer.group is None else None


class FusedLayers:
    """All layers of a model."""

    def __init__(self, layers: Sequence[FusedLayer], device: torch.device) -> None:
        cuda = device.type == "cuda"
        processors = torch.cuda.get_device_properties(device).multi_processor_count if cuda else PROCESSORS
        self._layers = layers
        self._pdl = programmatic_launch(device)
        outputs = max(len(one.down.weight) for one in layers)
        self._workspace = Workspace.make(outputs, device)
        self._splits = partial(TABLE[layers[0].down.weight.dtype].splits, processors=processors)

    @classmethod
    def of(cls, layers: Sequence[GpuLayer], device: torch.device) -> FusedLayers | None:
        """None if one of the layers cannot be run so."""
        own = [fused for layer in layers if (fused := FusedLayer.of(layer)) is not None]
        return cls(own, device) if len(own) == len(layers) else None

    def fits(self, tokens: int) -> bool:
        return 0 < tokens <= MOST_ROWS

    def __call__(
        self,
        residual: Tensor,
        turns: RotaryTables,
        pools: Sequence[Pools],
        batches: Sequence[GpuBatch],
        taps: ResidualTaps | None = None,
    ) -> Tensor:
        """What is to be added to the residual after the last layer; the others have added theirs."""
        last = len(self._layers) - 1
        for index, (one, own, batch) in enumerate(zip(self._layers, pools, batches, strict=True)):
            layer, eps = one.layer, one.layer.shape.norm_eps
            if taps is not None:
                taps.keep(index, residual)
            merged = gemv(residual, *one.qkv, norm=NormBefore(layer.attention_gain, eps), pdl=self._pdl)
            self._product(layer.attention(merged, turns, own, batch), one.out, residual)
            norm = NormBefore(layer.mlp_gain, eps)
            inner = gemv(residual, *one.gate_up, norm=norm, gated=True, pdl=self._pdl)
            added = self._product(inner, one.down, residual if index < last else None)
        return added

    def _product(self, x: Tensor, linear: CublasLinear, add: Tensor | None) -> Tensor:
        splits = self._splits(*linear.weight.shape)
        return gemv(x, *linear, add=add, workspace=self._workspace, splits=splits, pdl=self._pdl)
