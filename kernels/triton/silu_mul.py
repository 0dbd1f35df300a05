"""Triton: the gate of an MLP, silu(gate) * up or gelu(gate) * up, where one product made gate and up side by side.

    out[t, i] = g / (1 + exp(-g)) * u        g = merged[t, i], u = merged[t, size + i]
    out[t, i] = g / (1 + exp(-2y)) * u       y = √(2/π) · (g + 0.044715 · g³): GELU by its approximation with tanh

Formulas: Shazeer 2020, GLU Variants Improve Transformer (SwiGLU, GEGLU). In float32, rounded once.

One program takes BLOCK numbers of one row: the grid follows from shapes alone, so that a graph can capture it.
Compiled ahead of time and checked in the interpreter; not run on a GPU yet. Knows tensors only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK = 1024  # numbers of the result that a program makes
WARPS = 4


@triton.jit
def silu_mul_kernel(merged, out, merged_row, out_row, SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):
    """BLOCK numbers of one row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    source = merged + row * merged_row + at
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + SIZE, mask=inside, other=0.0).to(tl.float32)
    power = -1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else -gate
    result = gate / (1.0 + tl.exp(power)) * up
    tl.store(out + row * out_row + at, result.to(out.dtype.element_ty), mask=inside)


def silu_mul(merged: Tensor, out: Tensor | None = None) -> Tensor:
    """silu(gate) * up.

    merged   [tokens, 2 * size], gate first, then up; float32, float16 or bfloat16; rows may lie apart
    out      [tokens, size], of the same type; a new tensor if there is none
    """
    return _gate(merged, out, gelu=False)


def gelu_tanh_mul(merged: Tensor, out: Tensor | None = None) -> Tensor:
    """gelu(gate) * up; shapes and types as for `silu_mul`."""
    return _gate(merged, out, gelu=True)


GATES = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}  # by the name of the activation


def _gate(merged: Tensor, out: Tensor | None, gelu: bool) -> Tensor:
    if merged.dim() != 2 or merged.shape[1] % 2 or merged.dtype not in DTYPES:
        raise ValueError(f"merged {merged.dtype}{list(merged.shape)} must be floats [tokens, 2 * size]")
    tokens, size = merged.shape[0], merged.shape[1] // 2
    if out is None:
        out = torch.empty(tokens, size, dtype=merged.dtype, device=merged.device)
    if out.shape != (tokens, size) or out.dtype != merged.dtype or out.device != merged.device:
        raise ValueError(f"out {out.dtype}{list(out.shape)} does not fit merged {merged.dtype}{list(merged.shape)}")
    if size and (merged.stride(1) != 1 or out.stride(1) != 1):
        raise ValueError("merged and out must have the numbers of a row side by side")
    if tokens and size:
        grid = (tokens, triton.cdiv(size, BLOCK))
        silu_mul_kernel[grid](
            merged, out, merged.stride(0), out.stride(0), SIZE=size, BLOCK=BLOCK, GELU=gelu, num_warps=WARPS
        )
    return out
