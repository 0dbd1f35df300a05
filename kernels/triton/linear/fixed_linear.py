"""Triton: y = x Wᵀ + b with tiles that do not depend on the number of rows (`--deterministic`).

    y[r, n] = Σ_k x[r, k] · W[n, k] + b[n]                       sums in float32, rounded once
    y[r, h, n] = Σ_k x[r, h, k] · W[h, n, k]                     of heads that have a weight each
cuBLAS chooses by the number of rows how it cuts a product, and with that in which order a sum is made. Here a program
makes 64 rows of some outputs, all of k one after the other: a row has the same bits beside any others, wherever it is.
How many outputs, follows from the weight's shape. Of few rows that is more work than needed, but no more bytes.

Compiled ahead of time and checked in the interpreter; not run on a GPU yet. Knows tensors only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PRODUCTS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
INTERPRETED = bool(triton.knobs.runtime.interpret)


class Tiles(NamedTuple):
    """How a product with a weight is cut."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


def tiles_of(dtype: torch.dtype, outputs: int) -> Tiles:
    """By the weight alone. Narrow ones where there would be fewer programs than multiprocessors."""
    if dtype == torch.float32:  # exact products take many registers: they are there for checks
        return Tiles(16, 32, 32, 4, 2)
    return Tiles(64, 128 if outputs >= 1 << 14 else 64 if outputs >= 1 << 13 else 32, 64, 4, 4)


@triton.jit(do_not_specialize=["rows"])
def fixed_linear_kernel(
    x, weight, bias, out, x_row, weight_row, out_row, x_head, weight_head, out_head, rows,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    PRODUCT: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """ROWS rows of TILE_N outputs of a head. Those who share a part of W run side by side."""
    head = tl.program_id(1).to(tl.int64)
    x += head * x_head
    weight += head * weight_head
    out += head * out_head
    tiles = tl.cdiv(rows, ROWS)
    row = (tl.program_id(0) % tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    output = (tl.program_id(0) // tiles).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    given, wanted = row < rows, output < OUTPUTS
    total = tl.zeros([ROWS, TILE_N], tl.float32)
    for at in range(0, INPUTS, TILE_K):
        k = at + tl.arange(0, TILE_K)
        inside = (k < INPUTS)[None, :]
        values = tl.load(x + row[:, None] * x_row + k[None, :], mask=given[:, None] & inside, other=0.0)
        weights = tl.load(weight + output[:, None] * weight_row + k[None, :], mask=wanted[:, None] & inside, other=0.0)
        total = tl.dot(values.to(PRODUCT), tl.trans(weights.to(PRODUCT)), total, input_precision="ieee")
    if BIASED:
        total += tl.load(bias + output, mask=wanted, other=0.0).to(tl.float32)[None, :]
    place = out + row[:, None] * out_row + output[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=given[:, None] & wanted[None, :])


def fixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, wide: bool = False) -> Tensor:
    """[rows, outputs] of x [rows, inputs] and weight [outputs, inputs], floats of one type; rows may lie apart. `wide`:
    sums stay float32."""
    if x.dim() != 2 or x.dtype not in DTYPES or not x.shape[1] or x.stride(1) != 1:
        raise ValueError(f"x {x.dtype}{list(x.shape)} must be floats [rows, inputs], the numbers of a row side by side")
    if weight.dim() != 2 or weight.shape[1] != x.shape[1] or weight.dtype != x.dtype or weight.stride(1) != 1:
        raise ValueError(f"weight {weight.dtype}{list(weight.shape)} does not fit x {x.dtype}{list(x.shape)}")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype not in DTYPES or bias.stride(0) != 1):
        raise ValueError(f"bias {bias.dtype}{list(bias.shape)} does not fit weight {list(weight.shape)}")
    out = torch.empty(len(x), len(weight), dtype=torch.float32 if wide else x.dtype, device=x.device)
    return _launch(x[:, None], weight[None], bias, out[:, None])[:, 0]


def fixed_products(x: Tensor, weights: Tensor, out: Tensor) -> Tensor:
    """`out` [rows, heads, outputs] of x [rows, heads, inputs] and weights [heads, outputs, inputs], floats of one type,
    of any strides but the last."""
    if x.dim() != 3 or x.dtype not in DTYPES or not x.shape[2] or x.stride(2) != 1:
        raise ValueError(f"x {x.dtype}{list(x.shape)} must be floats [rows, heads, inputs], those of a head in a row")
    (rows, heads, inputs), outputs = x.shape, weights.shape[1]
    wanted = {"weights": (weights, (heads, outputs, inputs)), "out": (out, (rows, heads, outputs))}
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape or tensor.dtype != x.dtype or tensor.stride(2) != 1:
            raise ValueError(f"{name} {tensor.dtype}{list(tensor.shape)} do not fit x {x.dtype}{list(x.shape)}")
    return _launch(x, weights, None, out)


def _launch(x: Tensor, weights: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    rows, heads, outputs = out.shape
    if rows and outputs:
        tiles = tiles_of(x.dtype, outputs)
        product = tl.float32 if INTERPRETED else PRODUCTS[x.dtype]  # bfloat16 cannot be multiplied there
        fixed_linear_kernel[triton.cdiv(rows, tiles.rows) * triton.cdiv(outputs, tiles.outputs), heads](
            x, weights, x if bias is None else bias, out, x.stride(0), weights.stride(1), out.stride(0),
            x.stride(1), weights.stride(0), out.stride(1), rows,
            OUTPUTS=outputs, INPUTS=x.shape[2], ROWS=tiles.rows, TILE_N=tiles.outputs, TILE_K=tiles.inputs,
            PRODUCT=product, BIASED=bias is not None, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    return out
