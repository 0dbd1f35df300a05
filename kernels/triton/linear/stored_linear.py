"""Triton: y = x Wᵀ + b with W in the few bits in which a checkpoint has it (stored_weights.py).

    y[r, n] = Σ_g (scale[n, g] · Σ_{k in g} x[r, k] · (number[n, k] - zero[n, g]) - minimum[n, g] · Σ_{k in g} x[r, k])
              + b[n]                                                                    sums in float32, rounded once
Of up to 64 rows the bytes of W are what counts, so they are read as they lie and become floats in registers, tile by
tile: whole numbers and floats of few bits are exact in x's type, and scales are multiplied with sums. Of more rows
arithmetic counts: another kernel makes floats of the whole weight, in memory that all products of a model share, and
cuBLAS multiplies these. `fixed`: the first way for any number of rows, by tiles that do not depend on it.

Compiled ahead of time and checked in the interpreter; not run on a GPU yet, so sizes are computed, not measured.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..moe.weights import HALF
from .stored_weights import FOUR_BITS, StoredWeight

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PRODUCTS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
INTERPRETED = bool(triton.knobs.runtime.interpret)
FEW_ROWS, MOST_ROWS = 16, 64  # of a tile; of more than these, floats are made of the weight
DECODED = 32  # outputs of a program that makes floats


class Tiles(NamedTuple):
    """How a product with a weight is cut."""

    rows: int
    outputs: int
    warps: int
    stages: int


def tiles_of(dtype: torch.dtype, outputs: int, rows: int, fixed: bool = False) -> Tiles:
    """Narrow ones where there would be fewer programs than multiprocessors."""
    if dtype == torch.float32:  # exact products take many registers: they are there for checks
        return Tiles(16, 16, 4, 2)
    if rows <= FEW_ROWS and not fixed:
        return Tiles(FEW_ROWS, 64 if outputs >= 1 << 14 else 32 if outputs >= 1 << 12 else 16, 4, 4)
    return Tiles(MOST_ROWS, 64, 8, 3) if outputs >= 1 << 13 else Tiles(MOST_ROWS // 2, 32, 4, 3)


def piece_of(weight: StoredWeight) -> int:
    """How many numbers of a row are multiplied at once: they share a scale."""
    if weight.scales.shape[1] == 1:  # all of a row
        return HALF
    return next(piece for piece in (64, 32, 16) if weight.group % piece == 0)


@triton.jit
def floats_of(bits, zero, FORM: tl.constexpr, PRODUCT: tl.constexpr):
    """The numbers without their scales. Whole ones by the bits of 2^23 + number, since integers become floats slowly;
    others by the place of their bits in a float32, which is 2^120 or 2^126 times too small."""
    wide = bits.to(tl.int32)
    if FORM == "e4m3":
        made = (((wide & 127) << 20) | ((wide & 128) << 24)).to(tl.float32, bitcast=True) * 1.329227995784916e36
    elif FORM == "e2m1":
        made = (((wide & 7) << 22) | ((wide & 8) << 28)).to(tl.float32, bitcast=True) * 8.507059173023462e37
    else:
        made = (wide | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + zero)
    return made.to(PRODUCT)


@triton.jit(do_not_specialize=["rows"])
def stored_linear_kernel(
    x, numbers, scales, zeros, factors, minima, above, bias, out, x_row, out_row, rows,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    ROWS: tl.constexpr, TILE_N: tl.constexpr, PIECE: tl.constexpr, HALF: tl.constexpr, FORM: tl.constexpr,
    FOUR: tl.constexpr, ZERO: tl.constexpr, ZEROS: tl.constexpr, FACTORS: tl.constexpr, MINIMA: tl.constexpr,
    TOGETHER: tl.constexpr, ABOVE: tl.constexpr, BIASED: tl.constexpr, PRODUCT: tl.constexpr, ALIKE: tl.constexpr,
):  # fmt: skip
    """TILE_N outputs of ROWS rows. Those who share a part of W run side by side."""
    tiles = tl.cdiv(rows, ROWS)
    row = (tl.program_id(0) % tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    output = (tl.program_id(0) // tiles).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    given, wanted = row < rows, output < OUTPUTS
    byte = tl.arange(0, PIECE)
    total = tl.zeros([TILE_N, ROWS], tl.float32)
    zero = tl.full([TILE_N], ZERO, tl.float32)
    if ZEROS and GROUPS == 1:
        zero = tl.load(zeros + output, mask=wanted, other=0).to(tl.float32)
    for start in range(0, WIDTH, PIECE):
        bits = tl.load(numbers + output[:, None] * WIDTH + (start + byte)[None, :], mask=wanted[:, None], other=0)
        first = start // HALF * (2 * HALF) + start % HALF if FOUR else start
        for half in tl.static_range(2 if FOUR else 1):
            at = first + half * HALF
            k = at + byte
            inside = given[:, None] & (k < INPUTS)[None, :]
            values = tl.load(x + row[:, None] * x_row + k[None, :], mask=inside, other=0.0).to(PRODUCT)
            own = ((bits >> 4) if half else (bits & 15)) if FOUR else bits
            if GROUPS == 1 and not MINIMA:
                part = floats_of(own, zero[:, None], FORM, PRODUCT)
                total = tl.dot(part, tl.trans(values), total, input_precision="ieee")
            else:
                group = tl.minimum(at // GROUP, GROUPS - 1)  # beyond the last one x is 0
                if ZEROS:
                    zero = tl.load(zeros + output * GROUPS + group, mask=wanted, other=0).to(tl.float32)
                part = floats_of(own, zero[:, None], FORM, PRODUCT)
                made = tl.dot(part, tl.trans(values), input_precision="ieee")
                scale = tl.load(scales + output * GROUPS + group, mask=wanted, other=0).to(tl.float32)
                if TOGETHER:
                    if not (ALIKE and half):  # else the first half's was read
                        more = above + (output * ABOVE + group // TOGETHER) * (2 if MINIMA else 1)
                        step = tl.load(more, mask=wanted, other=0.0).to(tl.float32)
                    scale *= step
                total += made * scale[:, None]
                if MINIMA:
                    least = tl.load(minima + output * GROUPS + group, mask=wanted, other=0).to(tl.float32)
                    if TOGETHER:
                        if not (ALIKE and half):
                            least_step = tl.load(more + 1, mask=wanted, other=0.0).to(tl.float32)
                        least *= least_step
                    total -= least[:, None] * tl.sum(values.to(tl.float32), 1)[None, :]
    if GROUPS == 1 and not MINIMA:
        total *= tl.load(scales + output, mask=wanted, other=0.0).to(tl.float32)[:, None]
    if FACTORS:
        total *= tl.load(factors + output, mask=wanted, other=0.0)[:, None]
    if BIASED:
        total += tl.load(bias + output, mask=wanted, other=0.0).to(tl.float32)[:, None]
    place = out + row[None, :] * out_row + output[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=wanted[:, None] & given[None, :])


@triton.jit
def decode_kernel(
    numbers, scales, zeros, factors, minima, above, out,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    TILE_N: tl.constexpr, PIECE: tl.constexpr, HALF: tl.constexpr, FORM: tl.constexpr, FOUR: tl.constexpr,
    ZERO: tl.constexpr, ZEROS: tl.constexpr, FACTORS: tl.constexpr, MINIMA: tl.constexpr, TOGETHER: tl.constexpr,
    ABOVE: tl.constexpr,
):  # fmt: skip
    """PIECE bytes of TILE_N outputs as floats [OUTPUTS, INPUTS]."""
    output = tl.program_id(0).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    wanted = output < OUTPUTS
    start = tl.program_id(1) * PIECE
    byte = tl.arange(0, PIECE)
    bits = tl.load(numbers + output[:, None] * WIDTH + (start + byte)[None, :], mask=wanted[:, None], other=0)
    first = start // HALF * (2 * HALF) + start % HALF if FOUR else start
    factor = tl.full([TILE_N], 1.0, tl.float32)
    if FACTORS:
        factor = tl.load(factors + output, mask=wanted, other=0.0)
    for half in tl.static_range(2 if FOUR else 1):
        at = first + half * HALF
        k = at + byte
        group = tl.minimum(at // GROUP, GROUPS - 1)
        zero = tl.full([TILE_N], ZERO, tl.float32)
        if ZEROS:
            zero = tl.load(zeros + output * GROUPS + group, mask=wanted, other=0).to(tl.float32)
        scale = tl.load(scales + output * GROUPS + group, mask=wanted, other=0).to(tl.float32)
        more = above + (output * ABOVE + group // TOGETHER) * (2 if MINIMA else 1) if TOGETHER else above
        if TOGETHER:
            scale *= tl.load(more, mask=wanted, other=0.0).to(tl.float32)
        own = ((bits >> 4) if half else (bits & 15)) if FOUR else bits
        made = floats_of(own, zero[:, None], FORM, tl.float32) * scale[:, None]
        if MINIMA:
            least = tl.load(minima + output * GROUPS + group, mask=wanted, other=0).to(tl.float32)
            if TOGETHER:
                least *= tl.load(more + 1, mask=wanted, other=0.0).to(tl.float32)
            made -= least[:, None]
        made *= factor[:, None]
        inside = wanted[:, None] & (k < INPUTS)[None, :]
        tl.store(out + output[:, None] * INPUTS + k[None, :], made.to(out.dtype.element_ty), mask=inside)


def stored_linear(
    x: Tensor,
    weight: StoredWeight,
    bias: Tensor | None = None,
    floats: Tensor | None = None,
    fixed: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """[rows, outputs] of x [rows, inputs], whose rows may lie apart. `weight` was checked when it was made.

    floats  memory for at least as many numbers of x's type as the weight has; without any, all rows go the first way
    fixed   a row has the same bits in every batch
    out     where it goes; its rows may lie apart
    """
    if x.dim() != 2 or x.dtype not in DTYPES or x.shape[1] != weight.inputs or x.stride(1) != 1:
        raise ValueError(f"x {x.dtype}{list(x.shape)} must be floats [rows, {weight.inputs}], side by side in a row")
    if bias is not None and (bias.shape != (weight.outputs,) or bias.dtype not in DTYPES or bias.stride(0) != 1):
        raise ValueError(f"bias {bias.dtype}{list(bias.shape)} does not fit {weight.outputs} outputs")
    rows = len(x)
    if out is not None and (out.shape != (rows, weight.outputs) or out.dtype != x.dtype or out.stride(1) != 1):
        raise ValueError(f"out {out.dtype}{list(out.shape)} must be {x.dtype}{[rows, weight.outputs]}")
    if rows > MOST_ROWS and floats is not None and not fixed:
        made = F.linear(x, as_floats(weight, floats, x.dtype), bias)
        return made if out is None else out.copy_(made)
    out = torch.empty(rows, weight.outputs, dtype=x.dtype, device=x.device) if out is None else out
    if rows and weight.outputs:
        tiles = tiles_of(x.dtype, weight.outputs, rows, fixed)
        product = tl.float32 if INTERPRETED else PRODUCTS[x.dtype]  # bfloat16 cannot be multiplied there
        stored_linear_kernel[(triton.cdiv(rows, tiles.rows) * triton.cdiv(weight.outputs, tiles.outputs),)](
            x, *_tensors(weight), x if bias is None else bias, out, x.stride(0), out.stride(0), rows,
            ROWS=tiles.rows, TILE_N=tiles.outputs, BIASED=bias is not None, PRODUCT=product,
            ALIKE=_alike(weight, x.dtype), num_warps=tiles.warps, num_stages=tiles.stages, **_constants(weight),
        )  # fmt: skip
    return out


def _alike(weight: StoredWeight, dtype: torch.dtype) -> bool:
    """Whether what is above the scales is read once for both halves of bytes, which have the same. With minima 16 bits
    have it read for each: a quarter more registers would be taken on sm_80."""
    same = bool(weight.together) and weight.group * weight.together % (2 * HALF) == 0
    return same and (weight.minima is None or dtype == torch.float32)


def as_floats(weight: StoredWeight, floats: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight [outputs, inputs] in the first numbers of `floats`."""
    outputs, inputs = weight.outputs, weight.inputs
    if floats.dtype != dtype or floats.dim() != 1 or len(floats) < outputs * inputs:
        raise ValueError(f"floats {floats.dtype}{list(floats.shape)} do not hold {dtype}[{outputs * inputs}]")
    made = floats[: outputs * inputs].view(outputs, inputs)
    grid = triton.cdiv(outputs, DECODED), weight.numbers.shape[1] // piece_of(weight)
    decode_kernel[grid](*_tensors(weight), made, TILE_N=DECODED, num_warps=4, **_constants(weight))
    return made


def _tensors(weight: StoredWeight) -> tuple[Tensor, ...]:
    """Numbers, scales, zeros, factors, minima and what is above; what is not there is not read."""
    own = (weight.zeros, weight.factors, weight.minima, weight.above)
    return weight.numbers, weight.scales, *(weight.numbers if part is None else part for part in own)


def _constants(weight: StoredWeight) -> dict[str, object]:
    return {
        "OUTPUTS": weight.outputs,
        "INPUTS": weight.inputs,
        "WIDTH": weight.numbers.shape[1],
        "GROUP": weight.group,
        "GROUPS": weight.scales.shape[1],
        "PIECE": piece_of(weight),
        "HALF": HALF,
        "FORM": weight.form,
        "FOUR": weight.form in FOUR_BITS,
        "ZERO": weight.zero,
        "ZEROS": weight.zeros is not None,
        "FACTORS": weight.factors is not None,
        "MINIMA": weight.minima is not None,
        "TOGETHER": weight.together,
        "ABOVE": 0 if weight.above is None else weight.above.shape[1],
    }
