"""The formats of kernels/triton/quantised_kv.py in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from actorserve.kernels.triton.quantised_kv import E4M3, LARGEST


def quantise(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """(e4m3 numbers, their scales without the last dimension) of heads [..., head_dim]; plain torch."""
    exact = numbers.float()
    part, exponent = torch.frexp(exact.abs().nan_to_num(0, 0).amax(-1))  # part · 2^exponent, part in [0.5, 1)
    codes = (exponent - 9 + (part > LARGEST / 512) + 127).clamp(min=1).masked_fill(part == 0, 1)
    return (exact / _scale(codes)[..., None]).to(E4M3), codes.to(torch.uint8)


def dequantise(numbers: Tensor, scales: Tensor) -> Tensor:
    """float32 numbers [..., head_dim] of what `quantise` made."""
    return numbers.float() * _scale(scales)[..., None]


def _scale(codes: Tensor) -> Tensor:
    return (codes.to(torch.int32) << 23).view(torch.float32)
