"""y = x Wᵀ + b of e4m3 numbers on both sides: rows of x are rounded by a Triton kernel, torch multiplies.

    x[r, k] ≈ e4m3(x[r, k] / 2^p) · 2^p      p: the least for which no number of the row / 2^p is above 448, the largest
    y[r, n] = 2^p · scale[n] · Σ_k e4m3(x[r, k] / 2^p) · number[n, k] + b[n]
Such instructions do twice as much as those of 16 bits, and no floats are made of the weight; but x has 4 binary digits
then: answers are others, and less exact. The product is torch's, compared on a CPU; not run on a GPU yet.
Knows tensors only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantised_kv import E4M3, encode, scale_code, scale_of
from .stored_weights import StoredWeight

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
STEP = 16  # of which torch wants outputs to be a multiple
LARGEST_TILE = 4096
TRIED = 128  # rows, outputs and inputs


class ScaledWeight(NamedTuple):
    """Of one product, as torch reads it."""

    numbers: Tensor  # e4m3 [filled inputs, outputs], each output's side by side
    scales: Tensor  # float32 [1, outputs]


def scaled_weight(weight: StoredWeight) -> ScaledWeight | None:
    """The same memory; None of a weight that is not e4m3 with one scale for each output."""
    if weight.form != "e4m3" or weight.scales.shape[1] > 1 or weight.outputs % STEP:
        return None
    return ScaledWeight(weight.numbers.view(E4M3).t(), weight.scales.float().view(1, -1))


@triton.jit
def round_rows_kernel(x, numbers, scales, x_row, INPUTS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """One row; what fills it up is 0."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, TILE)
    largest = tl.zeros([TILE], tl.float32)
    for start in range(0, INPUTS, TILE):
        values = tl.load(x + row * x_row + start + at, mask=start + at < INPUTS, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(values))
    code = scale_code(tl.max(largest, 0))
    smaller = scale_of(254 - code)  # one over the scale
    for start in range(0, WIDTH, TILE):
        values = tl.load(x + row * x_row + start + at, mask=start + at < INPUTS, other=0.0).to(tl.float32)
        tl.store(numbers + row * WIDTH + start + at, encode(values * smaller), mask=start + at < WIDTH)
    tl.store(scales + row, scale_of(code))


def round_rows(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(e4m3 [rows, width], float32 [rows, 1]) of x [rows, inputs], whose rows may lie apart."""
    rows, inputs = x.shape
    if x.dtype not in DTYPES or inputs > width or (inputs > 1 and x.stride(1) != 1):
        raise ValueError(f"x {x.dtype}{list(x.shape)} must be floats [rows, at most {width}], side by side in a row")
    numbers = torch.empty(rows, width, dtype=torch.uint8, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    tile = min(LARGEST_TILE, triton.next_power_of_2(width))
    if rows:
        round_rows_kernel[(rows,)](
            x, numbers, scales, x.stride(0), INPUTS=inputs, WIDTH=width, TILE=tile, num_warps=max(1, tile // 512)
        )
    return numbers.view(E4M3), scales


def try_product(device: torch.device) -> None:
    """RuntimeError says what torch lacks: a build that is older than a GPU may have no product of rows for it."""
    numbers = torch.zeros(TRIED, TRIED, dtype=torch.uint8, device=device).view(E4M3)
    scales = torch.ones(TRIED, device=device)
    torch._scaled_mm(
        numbers, numbers.t(), scale_a=scales[:, None], scale_b=scales[None], bias=None, out_dtype=torch.bfloat16
    )


def scaled_linear(x: Tensor, weight: ScaledWeight, bias: Tensor | None = None) -> Tensor:
    """[rows, outputs] of bfloat16 x [rows, inputs]; torch has this for no other type."""
    if x.dtype != torch.bfloat16:
        raise ValueError(f"x is {x.dtype}; bfloat16 is multiplied so")
    numbers, scales = round_rows(x, len(weight.numbers))
    made: Tensor = torch._scaled_mm(
        numbers, weight.numbers, scale_a=scales, scale_b=weight.scales, bias=bias, out_dtype=x.dtype
    )
    return made
