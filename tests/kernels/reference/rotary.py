"""Rotation and the norm of heads in plain torch, float32."""

from __future__ import annotations

import torch
from torch import Tensor


def reference_rotate(heads: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """`heads` [tokens, heads, head_dim] with pairs turned by cos and sin [tokens, rotary_dim / 2], in float32."""
    rotary = 2 * cos.shape[1]
    turned = heads.float().clone()
    pairs = turned[..., :rotary]
    a, b = (pairs[..., ::2], pairs[..., 1::2]) if interleaved else pairs.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    first, second = a * cos - b * sin, b * cos + a * sin
    a.copy_(first)
    b.copy_(second)
    return turned


def reference_norm(heads: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Each head over its root-mean-square, times the gain, in float32."""
    exact = heads.float()
    return exact / torch.sqrt(exact.square().mean(-1, keepdim=True) + eps) * gain.float()
