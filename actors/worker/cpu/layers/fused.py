"""Which models have layers that kernels of our own compute as a whole in steps of few tokens: found out at load.

Plain ones: norm, q k v, norms of their heads, rotation | attention | out, norm, gate and up, SiLU, down, each linear
with a product of our own and everything in float32. All else, and steps of many tokens, go part by part
(worker/cpu/executor.py), by the same functions of rows: a token has the same bits in both.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actorserve.kernels.cpu.native.attention import MOST_DIM, NativeAttention
from actorserve.kernels.cpu.native.layers import PlainLayer, PlainLayers, PlainShape
from actorserve.kernels.cpu.native.linear import NativeLinear

from ...lora.sites import plain
from .native import current

if TYPE_CHECKING:
    from ..decoder_layer import CpuLayer
    from ..executor import CpuModel
    from .norm import RMSNorm


def fused_layers(model: CpuModel) -> PlainLayers | None:
    """The layers of a model as they are computed at once; None where one of them is of another kind."""
    library, shape = current(), model.shape
    if library is None or model.group is not None or model.dtype != torch.float32 or not model.layers:
        return None
    if shape.activation != "silu" or shape.residual_scale != 1 or shape.head_dim % 2:
        return None
    layers = []
    for layer, kind in zip(model.layers, model.rotation_of, strict=True):
        rotations = model.rotations[kind] if layer.turns else None
        if (made := _plain(layer, rotations)) is None:
            return None
        layers.append(made)
    inner = layers[0].down.inputs
    if any(layer.down.inputs != inner for layer in layers):
        return None
    own = PlainShape(shape.hidden_size, shape.heads, shape.kv_heads, shape.head_dim, inner, shape.norm_eps)
    return PlainLayers(library, own, layers)


def has_native_rows(model: CpuModel) -> bool:
    """Whether all that a plain model does is done by kernels of our own, for each row by itself: a token has the same
    bits in every batch then, though nobody asked for it."""
    rules = [rule for rule in model.kv.layers if rule is not None]
    attends = all(NativeAttention.takes(rule) and max(rule.key_dim, rule.value_dim) <= MOST_DIM for rule in rules)
    ends = isinstance(model.head, NativeLinear) and model.shape.logits_cap is None
    return model.fused is not None and attends and ends and model.precision == model.dtype  # see PagedKV.narrow


def _plain(layer: CpuLayer, rotations: Tensor | None) -> PlainLayer | None:
    others = (layer.latent, layer.unit_norm, layer.moe, layer.sum, layer.attention_post_norm, layer.mlp_post_norm)
    if any(other is not None for other in others) or isinstance(layer.qk_norm, partial):
        return None
    linears = [plain(linear) for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    own = [linear for linear in linears if isinstance(linear, NativeLinear)]
    if len(own) < len(linears):
        return None
    qkv, out, gate_up, down = own
    qk_norm: RMSNorm | None = getattr(layer.qk_norm, "__self__", None)
    norms = (layer.attention_norm, qk_norm, layer.mlp_norm)
    before, heads, between = (None if norm is None else norm.scaled_gain for norm in norms)
    return PlainLayer(qkv, out, gate_up, down, before, heads, between, rotations)
