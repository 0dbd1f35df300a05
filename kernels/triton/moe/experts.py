"""Triton: the small MLPs of a mixture of experts, for all tokens that were routed to them, as two grouped products.

    inner[p] = act(gate_e x[t]) · up_e x[t]                 p = (t, c): token t, whose choice c is expert e
    made[p]  = share[p] · down_e inner[p]                   or, of experts that take their token times its share,
    inner[p] = act(gate_e share[p] x[t]) · up_e share[p] x[t],  made[p] = down_e inner[p]
    out[t]   = Σ_c made[(t, c)]                             in the order of choices, in float32
    act      silu, GELU by tanh, or as gpt-oss has it:  g · sigmoid(alpha · g) · (u + 1), both within a limit
A program takes a block of pairs that share an expert (routing.py) and some outputs, so that experts that nobody chose
cost nothing, and the weights of one that is hit are read once for each block. Grids follow from shapes; what a block
is for is read on the device. No sum is made by whoever comes first: results are the same each time, and a pair's do not
depend on the others of its block. Weights may have 16 or 32 bits, 8 or 4 (weights.py); they become floats in registers.

Compiled ahead of time and checked in the interpreter; not run on a GPU yet, so sizes are computed, not measured.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .routing import Routed
from .weights import FLOATS, GROUP, HALF, ExpertWeights

PRODUCTS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
INTERPRETED = bool(triton.knobs.runtime.interpret)
SUMMED = 1024  # numbers of a token that a program adds up


class Gate(NamedTuple):
    """What is made of gate and up."""

    gelu: bool = False  # in place of g · sigmoid(alpha · g)
    alpha: float = 1.0
    limit: float | None = None  # of gate from above, of up on both sides
    offset: float = 0.0  # that is added to up


SILU = Gate()


class ExpertsLaunch(NamedTuple):
    """How the products are launched."""

    block: int = 16  # pairs of a program
    tile_n: int = 32  # outputs of one, of gate and up as many each
    tile_k: int = 128
    warps: int = 4
    stages: int = 4


FEW, SOME, MANY = ExpertsLaunch(), ExpertsLaunch(64, 64, 64, 4, 4), ExpertsLaunch(128, 64, 64, 8, 3)
EXACT = ExpertsLaunch(16, 16, 32, 4, 2)  # exact products take many registers: they are there for checks


def launch_of(dtype: torch.dtype, pairs: int, experts: int, form: str = "floats", fixed: bool = False) -> ExpertsLaunch:
    """By how many pairs an expert has in the mean; `fixed`: the same for all."""
    if dtype == torch.float32:
        return EXACT
    few = pairs <= 16 * experts
    found = SOME if fixed else FEW if few else SOME if pairs <= 128 * experts else MANY
    if form in ("int4", "mxfp4"):  # numbers become floats in registers, of which there must be enough
        found = found._replace(tile_k=HALF, tile_n=32, stages=3)
        if form == "int4" and found.block == SOME.block:  # whose middles take registers, too
            found = found._replace(block=32)
    return found


@triton.jit
def e2m1(bits, scale):
    """Floats of 4 bits times 2^(scale - 127), of 2^-127 twice as much: in a float32's place they are 2^126 times too
    small."""
    number = (((bits & 7).to(tl.int32) << 22) | ((bits & 8).to(tl.int32) << 28)).to(tl.float32, bitcast=True)
    code = tl.maximum(scale.to(tl.int32), 1)
    return number * 8.507059173023462e37 * (code << 23).to(tl.float32, bitcast=True)


@triton.jit
def unpacked(
    bits, scale, middle, MXFP4: tl.constexpr, TILE_N: tl.constexpr, PIECE: tl.constexpr, GROUP: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """Weights [TILE_N, PIECE] of their bits, with the scales and middles of their groups."""
    groups = tl.reshape(bits, [TILE_N, PIECE // GROUP, GROUP])
    if MXFP4:
        made = e2m1(groups, scale[:, :, None])
    else:
        made = (groups.to(tl.float32) - 8.0) * scale.to(tl.float32)[:, :, None] + middle.to(tl.float32)[:, :, None]
    return tl.reshape(made, [TILE_N, PIECE]).to(PRODUCT)


@triton.jit(do_not_specialize_on_alignment=["shares", "pairs", "blocks"])
def experts_kernel(
    x, weight, scales, middles, bias, shares, pairs, blocks, out, x_row, out_row, alpha, limit, offset,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, WIDTH: tl.constexpr, CHOICES: tl.constexpr, BLOCK: tl.constexpr,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr, PIECE: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr,
    PRODUCT: tl.constexpr, INT8: tl.constexpr, FOUR: tl.constexpr, MXFP4: tl.constexpr, GATED: tl.constexpr,
    GELU: tl.constexpr, LIMITED: tl.constexpr, BIASED: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """TILE_N outputs of a block of pairs."""
    block = tl.program_id(0)
    expert = tl.load(blocks + block * 2).to(tl.int64)
    if expert < 0:
        return
    index = tl.arange(0, BLOCK)
    there = index < tl.load(blocks + block * 2 + 1)
    pair = tl.load(pairs + block * BLOCK + index, mask=there, other=0).to(tl.int64)
    output = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    wanted = output < OUTPUTS
    rows = expert * (2 * OUTPUTS if GATED else OUTPUTS) + output
    source = x + (pair // CHOICES)[:, None] * x_row
    total = tl.zeros([BLOCK, TILE_N], tl.float32)
    other = tl.zeros([BLOCK, TILE_N], tl.float32)
    if FOUR:
        byte, group = tl.arange(0, PIECE), tl.arange(0, PIECE // GROUP)
        for start in range(0, WIDTH, PIECE):
            at = start // HALF * (2 * HALF) + start % HALF
            low, high = at + byte, at + HALF + byte
            first = tl.load(source + low[None, :], mask=there[:, None] & (low < INPUTS)[None, :], other=0.0)
            second = tl.load(source + high[None, :], mask=there[:, None] & (high < INPUTS)[None, :], other=0.0)
            first, second = first.to(PRODUCT), second.to(PRODUCT)
            for half in tl.static_range(2 if GATED else 1):
                own = rows + half * OUTPUTS
                bits = tl.load(weight + own[:, None] * WIDTH + (start + byte)[None, :], mask=wanted[:, None], other=0)
                of = own[:, None] * (2 * WIDTH // GROUP) + (at // GROUP + group)[None, :]
                step = HALF // GROUP
                scale = tl.load(scales + of, mask=wanted[:, None], other=0)
                scale_high = tl.load(scales + of + step, mask=wanted[:, None], other=0)
                middle, middle_high = scale, scale_high
                if not MXFP4:
                    middle = tl.load(middles + of, mask=wanted[:, None], other=0)
                    middle_high = tl.load(middles + of + step, mask=wanted[:, None], other=0)
                part = unpacked(bits & 15, scale, middle, MXFP4, TILE_N, PIECE, GROUP, PRODUCT)
                made = tl.dot(first, tl.trans(part), other if half else total, input_precision="ieee")
                part = unpacked(bits >> 4, scale_high, middle_high, MXFP4, TILE_N, PIECE, GROUP, PRODUCT)
                made = tl.dot(second, tl.trans(part), made, input_precision="ieee")
                if half:
                    other = made
                else:
                    total = made
    else:
        for at in range(0, INPUTS, TILE_K):
            k = at + tl.arange(0, TILE_K)
            inside = (k < INPUTS)[None, :]
            values = tl.load(source + k[None, :], mask=there[:, None] & inside, other=0.0).to(PRODUCT)
            place = weight + rows[:, None] * WIDTH + k[None, :]
            part = tl.load(place, mask=wanted[:, None] & inside, other=0).to(PRODUCT)
            total = tl.dot(values, tl.trans(part), total, input_precision="ieee")
            if GATED:
                part = tl.load(place + OUTPUTS * WIDTH, mask=wanted[:, None] & inside, other=0).to(PRODUCT)
                other = tl.dot(values, tl.trans(part), other, input_precision="ieee")
    if INT8:
        total = total * tl.load(scales + rows, mask=wanted, other=0.0)[None, :]
        if GATED:
            other = other * tl.load(scales + rows + OUTPUTS, mask=wanted, other=0.0)[None, :]
    if SHARED and GATED:  # of x times its share, which all products are linear in
        factor = tl.load(shares + pair, mask=there, other=0.0)[:, None]
        total = total * factor
        other = other * factor
    if BIASED:
        total += tl.load(bias + rows, mask=wanted, other=0.0).to(tl.float32)[None, :]
        if GATED:
            other += tl.load(bias + rows + OUTPUTS, mask=wanted, other=0.0).to(tl.float32)[None, :]
    if GATED:
        if LIMITED:
            total = tl.minimum(total, limit)
            other = tl.minimum(tl.maximum(other, -limit), limit)
        power = -1.5957691216057308 * (total + 0.044715 * total * total * total) if GELU else -alpha * total
        total = total / (1.0 + tl.exp(power)) * (other + offset)
    if SHARED and not GATED:
        total = total * tl.load(shares + pair, mask=there, other=0.0)[:, None]
    target = out + pair[:, None] * out_row + output[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=there[:, None] & wanted[None, :])


@triton.jit(do_not_specialize_on_alignment=["chosen", "beside", "gate"])
def combine_kernel(
    made, chosen, beside, gate, out, made_row, beside_row, gate_row, out_row,
    SIZE: tl.constexpr, CHOICES: tl.constexpr, BLOCK: tl.constexpr, BESIDE: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """BLOCK numbers of a token's sum."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    total = tl.zeros([BLOCK], tl.float32)
    for choice in range(CHOICES):
        pair = token * CHOICES + choice
        here = tl.load(chosen + pair) >= 0
        total += tl.load(made + pair * made_row + at, mask=inside & here, other=0.0).to(tl.float32)
    if BESIDE:
        shared = tl.load(beside + token * beside_row + at, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            shared = shared / (1.0 + tl.exp(-tl.load(gate + token * gate_row).to(tl.float32)))
        total += shared
    tl.store(out + token * out_row + at, total.to(out.dtype.element_ty), mask=inside)


def run_experts(
    x: Tensor,
    routed: Routed,
    up: ExpertWeights,
    down: ExpertWeights,
    gate: Gate = SILU,
    launch: ExpertsLaunch | None = None,
    of_inputs: bool = False,
) -> Tensor:
    """What the chosen experts make of each token, times its share: [tokens * choices, outputs of `down`].

    x       [tokens, inputs of `up`], floats; rows may lie apart
    routed  of these tokens, with blocks as `launch` has them
    up      gate's rows, then up's; twice as many as `down` has inputs
    launch  in place of `launch_of`
    of_inputs: shares multiply tokens, not what experts make of them
    Rows of pairs that nobody here computes are left as they are.
    """
    tokens, choices = routed.chosen.shape
    if launch is None:
        launch = launch_of(x.dtype, tokens * choices, len(up.numbers), up.format)
    if x.dim() != 2 or len(x) != tokens or x.dtype not in FLOATS or x.stride(1) != 1:
        raise ValueError(f"x {x.dtype}{list(x.shape)} must be floats [{tokens}, inputs], a row side by side")
    if x.shape[1] != up.inputs or up.numbers.shape[1] != 2 * down.inputs or len(up.numbers) != len(down.numbers):
        raise ValueError(
            f"x {list(x.shape)}, up {list(up.numbers.shape)} and down {list(down.numbers.shape)} do not fit"
        )
    inner = torch.empty(tokens * choices, down.inputs, dtype=x.dtype, device=x.device)
    made = torch.empty(tokens * choices, down.numbers.shape[1], dtype=x.dtype, device=x.device)
    _product(x, routed, up, inner, launch, gate, of_inputs)
    return _product(inner, routed, down, made, launch, None, not of_inputs)


def _product(
    x: Tensor,
    routed: Routed,
    weights: ExpertWeights,
    out: Tensor,
    launch: ExpertsLaunch,
    gate: Gate | None,
    shared: bool,
) -> Tensor:
    """`shared`: times each pair's share."""
    weights.check(x.dtype)
    block, form = launch.block, weights.format
    if len(routed.pairs) != block * len(routed.blocks):
        raise ValueError(f"{len(routed.blocks)} blocks of {len(routed.pairs)} pairs are not of {block}")
    if not len(out):
        return out
    outputs = out.shape[1]
    act = SILU if gate is None else gate
    product = tl.float32 if INTERPRETED else PRODUCTS[x.dtype]  # bfloat16 cannot be multiplied there
    options: dict[str, Any] = {"num_warps": launch.warps, "num_stages": launch.stages}
    four = form in ("int4", "mxfp4")
    wide = gate is None and block > FEW.block and not four  # one sum in place of two
    tile_n = launch.tile_n * (1 + wide)
    experts_kernel[len(routed.blocks), triton.cdiv(outputs, tile_n)](
        x, weights.numbers, x if weights.scales is None else weights.scales,
        x if weights.middles is None else weights.middles, x if weights.bias is None else weights.bias,
        routed.shares, routed.pairs, routed.blocks, out, x.stride(0), out.stride(0),
        act.alpha, float(act.limit or 0), act.offset,
        OUTPUTS=outputs, INPUTS=weights.inputs, WIDTH=weights.numbers.shape[2],
        CHOICES=1 if gate is None else routed.chosen.shape[1], BLOCK=block,
        TILE_N=tile_n, TILE_K=launch.tile_k, PIECE=min(HALF, launch.tile_k), HALF=HALF, GROUP=GROUP, PRODUCT=product,
        INT8=form == "int8", FOUR=four, MXFP4=form == "mxfp4", GATED=gate is not None, GELU=act.gelu,
        LIMITED=act.limit is not None, BIASED=weights.bias is not None, SHARED=shared, **options,
    )  # fmt: skip
    return out


def add_up(made: Tensor, routed: Routed, beside: Tensor | None = None, gate: Tensor | None = None) -> Tensor:
    """[tokens, size]: of what `run_experts` made each token's sum, in the order of its choices.

    beside  [tokens, size], added; with `gate` [tokens, 1], times its sigmoid
    """
    tokens, choices = routed.chosen.shape
    size = made.shape[1]
    for name, part, width in (("made", made, size), ("beside", beside, size), ("gate", gate, 1)):
        rows = tokens * choices if part is made else tokens
        if part is not None and (part.shape != (rows, width) or part.dtype != made.dtype or part.stride(1) != 1):
            raise ValueError(f"{name} {part.dtype}{list(part.shape)} must be {made.dtype}{[rows, width]}")
    out = torch.empty(tokens, size, dtype=made.dtype, device=made.device)
    if tokens and size:
        other, factor = made if beside is None else beside, made if gate is None else gate
        combine_kernel[tokens, triton.cdiv(size, SUMMED)](
            made, routed.chosen, other, factor, out, made.stride(0), other.stride(0), factor.stride(0), out.stride(0),
            SIZE=size, CHOICES=choices, BLOCK=min(SUMMED, triton.next_power_of_2(size)),
            BESIDE=beside is not None, GATED=gate is not None, num_warps=4,
        )  # fmt: skip
    return out
