"""Triton: what LoRA adapters add to a product, for tokens of any mix of adapters and of none, as two kernels.

    shrink    inner[t, r] = Σ_k A[s, r, k] · x[t, k]                            s: the slot of token t's adapter
    expand    y[t, n] += gain[s, n] · (y[t, n] - b[n]) + Σ_r B[s, n, r] · inner[t, r]
A product may be several layers side by side, its parts (q, k and v; gate and up): A then has the ranks of all parts
one after the other, and an output takes those of its own part. `gain` is DoRA's. Sums are float32 and y is rounded
once more; `inner` is rounded to the type of B before it is multiplied.

A program takes a block of tokens that share a slot, so that A and B are read once for each block, and a slot that no
token has is not read. Which tokens a block has, a slot's ranks, and whether it has gains are read on the device; grids
follow from shapes alone: a graph holds for whatever adapters the slots have by then. A block without a slot and ranks
that an adapter has not leave at once; ranks are filled up to RANKS with zeros, and what lies behind is not read. Long
sums are divided among programs by the number of inputs alone, and added up in their order: a token's result does not
depend on the others of its block.

Compiled ahead of time and checked in the interpreter; not run on a GPU yet, so sizes are computed, not measured.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

PRODUCTS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
INTERPRETED = bool(triton.knobs.runtime.interpret)
MOST_PARTS = 4
GAINED = MOST_PARTS  # where `about` says that a slot has gains
ABOUT = 8  # numbers of a slot there; more than are used, so that each slot's begin at 32 bytes
RANKS = 16  # a tile; slots hold a multiple of it for each part
LEAST = 512  # of inputs, that a split is worth
MOST_SPLITS = 8
MOST_REGISTERS = 255  # of a thread
FEW = 128  # tokens, up to which blocks are small


class LoraLaunch(NamedTuple):
    """How both are launched."""

    block: int = 16  # tokens of a program
    tile_k: int = 128  # inputs that are multiplied at a time
    tile_n: int = 128  # outputs of a program
    warps: int = 4
    stages: int = 3
    registers: int | None = None  # that a thread may have, where `expand` would spill to stay below ptxas' own bound


# Others had registers spilled by ptxas:
SMALL, LARGE = LoraLaunch(), LoraLaunch(block=64, tile_k=64, warps=8, registers=MOST_REGISTERS)
EXACT = LoraLaunch(tile_k=64, tile_n=32, stages=2)  # exact products take many registers: they are there for checks


def launch_of(dtype: torch.dtype, tokens: int, fixed: bool = False) -> LoraLaunch:
    """For a step of so many tokens; `fixed`: the same for all."""
    if dtype == torch.float32:
        return EXACT
    return SMALL if fixed or tokens <= FEW else LARGE


class LoraSlots(NamedTuple):
    """The adapters of one product, each in its slot."""

    a: Tensor  # [slots, parts · ranks, inputs]
    b: Tensor  # [slots, outputs, ranks], of the same type
    gain: Tensor  # float32 [slots, outputs]
    about: Tensor  # int32 [slots, ABOUT]: the rank of each part, and at GAINED whether there are gains
    sizes: tuple[int, ...]  # outputs of each part

    @classmethod
    def make(
        cls, sizes: tuple[int, ...], inputs: int, slots: int, rank: int, dtype: torch.dtype, device: torch.device
    ) -> LoraSlots:
        """Slots without adapters, for such of up to `rank`."""
        if not 0 < len(sizes) <= MOST_PARTS:
            raise ValueError(f"sizes {list(sizes)} must be of 1 to {MOST_PARTS} parts")
        ranks, outputs = padded(rank), sum(sizes)
        return cls(
            torch.empty(slots, len(sizes) * ranks, inputs, dtype=dtype, device=device),
            torch.empty(slots, outputs, ranks, dtype=dtype, device=device),
            torch.empty(slots, outputs, dtype=torch.float32, device=device),
            torch.zeros(slots, ABOUT, dtype=torch.int32, device=device),
            sizes,
        )

    @property
    def ranks(self) -> int:
        """That each part has room for."""
        return self.b.shape[2]


class TokenBlocks(NamedTuple):
    """Which tokens of a step have which slot."""

    blocks: Tensor  # int32 [blocks, 3]: slot, where its tokens begin in `tokens`, how many; below 0: no block
    tokens: Tensor  # int32: tokens of the step
    launch: LoraLaunch


def padded(rank: int) -> int:
    """The room that a rank takes."""
    return -(-rank // RANKS) * RANKS


def most_blocks(tokens: int, slots: int, block: int) -> int:
    """How many blocks so many tokens fill, however they are divided among slots."""
    return max(1, min(tokens, slots + tokens // block))


@triton.jit(do_not_specialize_on_alignment=["blocks", "tokens"])
def shrink_kernel(
    x, a, about, blocks, tokens, inner, x_row, inputs, part, inner_split,
    PARTS: tl.constexpr, TILES: tl.constexpr, ABOUT: tl.constexpr, BLOCK: tl.constexpr, RANKS: tl.constexpr,
    TILE_K: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """RANKS ranks of one part for a block's tokens, of `part` inputs."""
    block = tl.program_id(0)
    slot = tl.load(blocks + block * 3).to(tl.int64)
    if slot < 0:
        return
    tile, split = tl.program_id(1), tl.program_id(2)
    rank = tl.load(about + slot * ABOUT + tile // TILES)
    first = tile % TILES * RANKS
    if first >= rank:
        return
    begin, count = tl.load(blocks + block * 3 + 1), tl.load(blocks + block * 3 + 2)
    index = tl.arange(0, BLOCK)
    there = index < count
    token = tl.load(tokens + begin + index, mask=there, other=0).to(tl.int64)
    own = tl.arange(0, RANKS)
    source = x + token[:, None] * x_row
    weight = a + (slot * (PARTS * TILES) + tile) * RANKS * inputs + own[:, None] * inputs
    total = tl.zeros([BLOCK, RANKS], tl.float32)
    for at in range(split * part, tl.minimum(split * part + part, inputs), TILE_K):
        k = at + tl.arange(0, TILE_K)
        inside = (k < inputs)[None, :]
        values = tl.load(source + k[None, :], mask=there[:, None] & inside, other=0.0).to(PRODUCT)
        weights = tl.load(weight + k[None, :], mask=inside, other=0.0).to(PRODUCT)
        total = tl.dot(values, tl.trans(weights), total, input_precision="ieee")
    place = inner + split.to(tl.int64) * inner_split + (begin + index)[:, None] * (PARTS * TILES * RANKS)
    tl.store(place + (tile * RANKS + own)[None, :], total, mask=there[:, None])


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["blocks", "tokens", "bias"])
def expand_kernel(
    inner, b, gain, bias, about, blocks, tokens, y, y_row, outputs, size_0, size_1, size_2, splits, inner_split,
    PARTS: tl.constexpr, TILES: tl.constexpr, ABOUT: tl.constexpr, GAINED: tl.constexpr, BLOCK: tl.constexpr,
    RANKS: tl.constexpr, TILE_N: tl.constexpr, PRODUCT: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """TILE_N outputs of one part for a block's tokens."""
    block, tile = tl.program_id(0), tl.program_id(1)
    slot = tl.load(blocks + block * 3).to(tl.int64)
    if slot < 0:
        return
    own, begins, ends, before = tile * 0, tile * 0, outputs, tile * 0  # which part, its outputs, tiles before its own
    end, tiles = tile * 0, tile * 0
    for part in tl.static_range(1, PARTS):  # no tile has outputs of two
        size = size_0 if part == 1 else size_1 if part == 2 else size_2
        end, tiles = end + size, tiles + tl.cdiv(size, TILE_N)
        ends = tl.where(tile < tiles, tl.minimum(ends, end), ends)
        behind = tile >= tiles
        own += behind.to(tl.int32)
        begins, before = tl.where(behind, end, begins), tl.where(behind, tiles, before)
    rank = tl.load(about + slot * ABOUT + own)
    if rank == 0:
        return
    begin, count = tl.load(blocks + block * 3 + 1), tl.load(blocks + block * 3 + 2)
    index = tl.arange(0, BLOCK)
    there = index < count
    token = tl.load(tokens + begin + index, mask=there, other=0).to(tl.int64)
    output = begins + (tile - before) * TILE_N + tl.arange(0, TILE_N)
    wanted = output < ends
    line = (slot * outputs + output)[:, None] * (TILES * RANKS)
    place = inner + (begin + index)[:, None] * (PARTS * TILES * RANKS) + own * (TILES * RANKS)
    total = tl.zeros([BLOCK, TILE_N], tl.float32)
    for first in range(0, rank, RANKS):
        r = first + tl.arange(0, RANKS)
        values = tl.zeros([BLOCK, RANKS], tl.float32)
        for split in range(splits):
            summed = place + tl.cast(split, tl.int64) * inner_split + r[None, :]
            values += tl.load(summed, mask=there[:, None], other=0.0)
        weights = tl.load(b + line + r[None, :], mask=wanted[:, None], other=0.0).to(PRODUCT)
        values = values.to(b.dtype.element_ty).to(PRODUCT)
        total = tl.dot(values, tl.trans(weights), total, input_precision="ieee")
    target = y + token[:, None] * y_row + output[None, :]
    both = there[:, None] & wanted[None, :]
    made = tl.load(target, mask=both, other=0.0).to(tl.float32)
    gained = tl.load(about + slot * ABOUT + GAINED) > 0
    longer = tl.load(gain + slot * outputs + output, mask=wanted & gained, other=0.0)
    plain = made
    if BIASED:
        plain = made - tl.load(bias + output, mask=wanted & gained, other=0.0).to(tl.float32)[None, :]
    total += made + longer[None, :] * plain
    tl.store(target, total.to(y.dtype.element_ty), mask=both)


def split_count(inputs: int) -> int:
    """Among how many programs a sum over so many inputs is divided."""
    return max(1, min(MOST_SPLITS, inputs // LEAST))


def make_inner(tokens: int, slots: LoraSlots, device: torch.device) -> Tensor:
    """Where `shrink` leaves what `expand` takes: [splits, tokens, ranks of all parts]."""
    return torch.empty(split_count(slots.a.shape[2]), tokens, slots.a.shape[1], device=device)


def shrink(x: Tensor, slots: LoraSlots, given: TokenBlocks, inner: Tensor) -> None:
    """`inner` (make_inner) of x [tokens, inputs], whose rows may lie apart."""
    tokens, inputs = x.shape
    if inputs != slots.a.shape[2] or x.dtype != slots.a.dtype or x.stride(1) != 1:
        raise ValueError(f"x {x.dtype}{list(x.shape)} does not fit A {slots.a.dtype}{list(slots.a.shape)}")
    if inner.shape != (split_count(inputs), tokens, slots.a.shape[1]) or not inner.is_contiguous():
        raise ValueError(f"inner {list(inner.shape)} is of another step")
    launch, splits, parts = given.launch, len(inner), len(slots.sizes)
    product = tl.float32 if INTERPRETED else PRODUCTS[x.dtype]  # bfloat16 cannot be multiplied there
    part = triton.cdiv(inputs, splits * launch.tile_k) * launch.tile_k
    shrink_kernel[len(given.blocks), slots.a.shape[1] // RANKS, splits](
        x, slots.a, slots.about, given.blocks, given.tokens, inner, x.stride(0), inputs, part, inner.stride(0),
        PARTS=parts, TILES=slots.ranks // RANKS, ABOUT=ABOUT, BLOCK=launch.block, RANKS=RANKS, TILE_K=launch.tile_k,
        PRODUCT=product, num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip


def expand(inner: Tensor, y: Tensor, bias: Tensor | None, slots: LoraSlots, given: TokenBlocks) -> None:
    """y [tokens, outputs], with what its tokens' adapters change; gains leave `bias`, which is in it, as it is."""
    if y.shape != (inner.shape[1], slots.b.shape[1]) or y.stride(1) != 1:
        raise ValueError(f"y {list(y.shape)} does not fit B {list(slots.b.shape)} and {inner.shape[1]} tokens")
    launch, parts = given.launch, len(slots.sizes)
    tiles = sum(triton.cdiv(size, launch.tile_n) for size in slots.sizes)
    first = (*slots.sizes, 0, 0)[:3]
    product = tl.float32 if INTERPRETED else PRODUCTS[slots.b.dtype]
    expand_kernel[len(given.blocks), tiles](
        inner, slots.b, slots.gain, y if bias is None else bias, slots.about, given.blocks, given.tokens, y,
        y.stride(0), slots.b.shape[1], *first, len(inner), inner.stride(0),
        PARTS=parts, TILES=slots.ranks // RANKS, ABOUT=ABOUT, GAINED=GAINED, BLOCK=launch.block, RANKS=RANKS,
        TILE_N=launch.tile_n, PRODUCT=product, BIASED=bias is not None,
        num_warps=launch.warps, num_stages=launch.stages,
        maxnreg=MOST_REGISTERS if parts > 3 else launch.registers,
    )  # fmt: skip
