"""Triton: the root-mean-square norm, and the same fused with the addition of the residual before it.

    residual += x                                                             in add_rms_norm only
    out = v / sqrt(mean(v²) + eps) * gain        v: the residual as stored (add_rms_norm), or x (rms_norm)

Formula: Zhang and Sennrich 2019, Root Mean Square Layer Normalization. Sums, root and products are float32, and the
result is rounded once. What is normed is the residual as it was rounded when stored, so that fused and separate agree.

One program takes one row, whatever its values, so that a captured graph launches as many as the batch has rows.
Compiled ahead of time and checked in the interpreter; not run on a GPU yet. Knows tensors only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..checked import once_for_each_form

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 1 << 16  # numbers of a row that one program holds in registers


@triton.jit
def rms_norm_kernel(
    x, residual, gain, out, x_row, residual_row, out_row, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    values = tl.load(x + row * x_row + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        place = residual + row * residual_row + at
        stored = (tl.load(place, mask=inside, other=0.0).to(tl.float32) + values).to(residual.dtype.element_ty)
        tl.store(place, stored, mask=inside)
        values = stored.to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, 0) / SIZE + eps)
    gains = tl.load(gain + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_row + at, (values * scale * gains).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, gain: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """x / rms(x) * gain over the last dimension.

    x      [tokens, size], float32, float16 or bfloat16; rows may lie apart, the numbers of a row side by side
    gain   [size], of any of these types
    out    as x, may be x itself; a new tensor if there is none
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    _check(x, gain, {"x": x, "out": out})
    return _launch(x, x, gain, eps, out, add=False)


def add_rms_norm(x: Tensor, residual: Tensor, gain: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """residual += x, in place; returns residual / rms(residual) * gain. Shapes and types as for `rms_norm`.

    residual   as x, and not the same memory
    out        as x, may be x itself; a new tensor if there is none
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    _check(x, gain, {"x": x, "residual": residual, "out": out})
    return _launch(x, residual, gain, eps, out, add=True)


def warps(block: int) -> int:
    """Warps for a row: 8 numbers a thread, up to 16 warps."""
    return max(1, min(16, block // 256))


@once_for_each_form
def _check(x: Tensor, gain: Tensor, matrices: dict[str, Tensor]) -> None:
    if x.dim() != 2 or not 0 < x.shape[1] <= WIDEST:
        raise ValueError(f"x {list(x.shape)} must be [tokens, size], with a size of 1 to {WIDEST}")
    if gain.shape != x.shape[1:] or gain.dtype not in DTYPES or gain.stride(0) != 1 or gain.device != x.device:
        raise ValueError(f"gain {gain.dtype}{list(gain.shape)} does not fit x {list(x.shape)}")
    for name, tensor in matrices.items():
        if tensor.shape != x.shape or tensor.dtype != x.dtype or x.dtype not in DTYPES or tensor.device != x.device:
            raise ValueError(f"{name} {tensor.dtype}{list(tensor.shape)} does not fit x {x.dtype}{list(x.shape)}")
        if tensor.stride(1) != 1:
            raise ValueError(f"{name} must have the numbers of a row side by side, not {tensor.stride(1)} apart")


def _launch(x: Tensor, residual: Tensor, gain: Tensor, eps: float, out: Tensor, add: bool) -> Tensor:
    tokens, size = x.shape
    if tokens:
        block = triton.next_power_of_2(size)
        strides = x.stride(0), residual.stride(0), out.stride(0)
        rms_norm_kernel[(tokens,)](
            x, residual, gain, out, *strides, eps, SIZE=size, BLOCK=block, ADD=add, num_warps=warps(block)
        )
    return out
