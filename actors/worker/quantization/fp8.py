"""Weights of floats of 8 bits made at load (`--quantization fp8`): e4m3, with a scale for each output.

    w = e4m3(w / s) · s          s = amax(|w|) / 448 of each output, rounded up to 4 binary digits
Numbers of 4 digits times scales of 4 have 8, which bfloat16 holds: so the same numbers are multiplied whether they are
kept in 8 bits with their scales (a GPU), in bfloat16 (a CPU: with our own kernels, or where that is the type that is
computed in) or in float32. No instruction of a CPU multiplies e4m3: there fp8 takes the memory of 16 bits or more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actorserve.kernels.cpu.native.linear import bfloat16_linear, float_linear

from ..cpu.layers.native import current
from .base import CpuLinear, LinearTensors
from .none import cpu_linear as plain_linear

LARGEST = 448.0  # of e4m3
DIGITS = 4
LEAST = 1e-30  # of a scale


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(numbers in e4m3 [outputs, inputs], scales in float32 [outputs]) of floats."""
    exact = weight.float()
    part, power = torch.frexp((exact.abs().amax(1) / LARGEST).clamp_(min=LEAST))  # part from 1/2 to 1
    scales = torch.ldexp((part * (1 << DIGITS)).ceil(), power - DIGITS)
    numbers = (exact / scales[:, None]).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return numbers, scales


def meant(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """What these numbers are, in a type of floats."""
    made = torch.empty(weight.shape, dtype=dtype)
    step = max(1, (1 << 20) // max(1, weight.shape[1]))
    for some in (slice(first, first + step) for first in range(0, len(weight), step)):
        numbers, scales = rounded(weight[some])
        made[some] = numbers.float() * scales[:, None]
    return made


def cpu_linear(tensors: LinearTensors) -> CpuLinear:
    """Of weights in any type."""
    library = current()
    weight = tensors.joined("weight", None)
    if library is not None and tensors.in_bfloat16:
        return bfloat16_linear(library, meant(weight, torch.bfloat16), tensors.bias())
    if library is not None and tensors.dtype == torch.float32:  # which widens them as it multiplies
        return float_linear(library, library.weights.copied(meant(weight, torch.bfloat16)), tensors.bias())
    made = meant(weight, tensors.dtype)

    def joined(kind: str, dtype: torch.dtype | None) -> Tensor:
        return made if kind == "weight" else tensors.joined(kind, dtype)

    return plain_linear(tensors._replace(joined=joined))
