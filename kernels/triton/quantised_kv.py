"""KV pools of 8 bits: e4m3 numbers with a scale for each head of each token, beside the pools.

    x ≈ e4m3(x / 2^n) · 2^n        n: the least for which none of the head's numbers / 2^n is above 448, the largest

A scale of its own for each token and head needs no calibration: an outlier costs the precision of its own head alone,
and no number is ever cut off. Powers of two are enough, since e4m3 is a floating-point format: its error, at most 1/16
of a number, does not depend on where below 448 numbers lie. So a scale is one byte, n + 127 (e8m0 as in OCP's
Microscaling formats), 0.8 % of a head of 128 where float32 would be 3 %, and scaling is exact. Numbers below 2^-14 of
the head's largest lose precision, those below 2^-18 may become 0.

Scales are not multiplied with keys and values but with scores and weights, of which there are fewer (attention).
What is written is made of integers here, the same on each device; reading takes conversions, as Ada, Hopper and newer
have. Compiled ahead of time and checked in the interpreter; not run on a GPU yet.
NaN and infinity become NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
OLDEST = 8, 9  # the compute capability from which on there are conversions


class Scales(NamedTuple):
    """Of the pools of one layer, both uint8 [blocks, kv_heads, block_size]: n + 127. 0 stands for nothing written."""

    keys: Tensor
    values: Tensor

    @classmethod
    def make(cls, keys: Tensor) -> Scales:
        """For pools of the shape of `keys`."""
        memory = torch.zeros(2, *keys.shape[:3], dtype=torch.uint8, device=keys.device)
        return cls(memory[0], memory[1])


def supported(device: torch.device) -> bool:
    """Whether kernels can read such pools there; in Triton's interpreter they can."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= OLDEST


def check_scales(keys: Tensor, values: Tensor, scales: Scales | None) -> None:
    """Raise ValueError unless pools of e4m3 have scales that fit, and others have none."""
    if scales is None or keys.dtype != E4M3:
        if scales is not None or keys.dtype == E4M3:
            raise ValueError(f"keys are {keys.dtype}, scales {'are there' if scales else 'missing'}")
        return
    for name, tensor in scales._asdict().items():
        if tensor.dtype != torch.uint8 or tensor.shape != keys.shape[:3] or tensor.device != keys.device:
            raise ValueError(f"scales of {name} {tensor.dtype}{list(tensor.shape)} do not fit {list(keys.shape)}")
        if tensor.stride(2) != 1 or tensor.stride() != scales.keys.stride():
            raise ValueError(f"scales of {name} have strides {tensor.stride()}: those of a block lie side by side")
    if values.dtype != E4M3:
        raise ValueError(f"keys are {keys.dtype}, values {values.dtype}")


@triton.jit
def scale_of(codes):
    """2^n of uint8 n + 127; 0 of 0."""
    return (codes.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def ratio(code, larger):
    """2^(n - m) of n + 127 and m + 127, int32, where m >= n; 0 where that is below 2^-126."""
    return (tl.maximum(code - larger + 127, 0) << 23).to(tl.float32, bitcast=True)


@triton.jit
def scale_code(peak):
    """n + 127 of the least 2^n with peak / 2^n <= 448 = 1.75 · 2^8, int32; at least 1."""
    bits = peak.to(tl.int32, bitcast=True)
    return tl.maximum(((bits + 0x1FFFFF) >> 23) - 8, 1)


@triton.jit
def encode(x):
    """e4m3 of float32, as uint8: to the nearest, ties to even; beyond the largest it is the largest."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    tiny = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000  # 2^14, where floats lie 2^-9 apart
    code = tl.minimum(tl.where(size < 0x3C800000, tiny, normal), 0x7E)
    code = tl.where(size >= 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def widen(numbers, PRODUCT: tl.constexpr):
    """What was loaded from a pool, bytes being e4m3, as the type that is multiplied."""
    if numbers.dtype == tl.uint8:
        return numbers.to(tl.float8e4nv, bitcast=True).to(PRODUCT)
    else:
        return numbers.to(PRODUCT)
