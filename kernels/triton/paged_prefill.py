"""Paged attention for prompts and mixed batches; the formula and the layout stand in kernels/types.py.

The tokens of row r are [starts[r], starts[r + 1]) of the flat batch, the last ones of its `lengths[r]` positions; their
keys and values are in the pools already. A program takes a few tokens of one row for one head of keys: each token with
each query of the group is a row of the product, so that all of them share the keys that are read.

Which tokens, a program finds out itself: with T tokens a tile, row r has the tiles from starts[r] // T + r on, as many
as it needs, or one more. So the grid depends on the sizes of `queries` and `starts` only, and a graph that
captured it serves any lengths and any division into rows. What lies behind the last row counts as a row of length 0.
The last tiles, which see most keys, start first.

Compiled ahead of time and checked in the interpreter; not run on a GPU yet, so sizes of tiles are computed, not
measured. Rows of one token work, but one program reads all their keys: where they are many or long, put them before
starts[0], which this kernel leaves alone, and give them to paged_decode.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..types import Pages, Scoring, bytes_of, check, check_out, check_starts, strides
from .paged_decode import attend, constants, factors, fetch, place

TILE_BYTES = 16384  # of a tile of keys


def paged_prefill(queries: Tensor, starts: Tensor, pages: Pages, scoring: Scoring, out: Tensor | None = None) -> Tensor:
    """Causal attention of all rows' tokens: `out` [tokens, heads, head_dim], as `queries`.

    queries  [tokens, heads, head_dim] float32, float16 or bfloat16; heads a multiple of kv_heads, by 1 to 16
    starts   int32 [rows + 1], not decreasing, at most `tokens`
    pages    as for paged_decode; a token of row r is at position lengths[r] - starts[r + 1] + its index
    Tokens from starts[rows] on, and those at positions below 0, give zeros; those before starts[0] are not written.
    Sums are float32 (weights of the product with values are rounded to the type of values).
    """
    check(queries, pages)
    check_starts(starts, pages)
    out = torch.empty_like(queries, memory_format=torch.contiguous_format) if out is None else out
    check_out(out, queries)
    tokens, heads = queries.shape[:2]
    rows, kv_heads = len(pages.lengths), pages.keys.shape[1]
    options, launch = configuration(queries.dtype, pages.keys, heads, scoring)
    programs = (tokens // options["TOKENS"] + rows + 1) * kv_heads
    _prefill[(programs,)](
        queries, *bytes_of(pages), pages.blocks, pages.lengths, starts, out, *factors(scoring),
        *queries.stride()[:2], *strides(pages), pages.blocks.stride(0), *out.stride()[:2],
        tokens, rows, kv_heads, **options, **launch,
    )  # fmt: skip
    return out


def configuration(
    dtype: torch.dtype, keys: Tensor, heads: int, scoring: Scoring
) -> tuple[dict[str, Any], dict[str, int]]:
    """(what the kernel is compiled for, by shape and type; how it is launched)."""
    options = constants(dtype, keys, heads, scoring, TILE_BYTES)
    if dtype == torch.float32:  # as in paged_decode.py
        return options | {"TILE": 16, "PACKED": 16, "TOKENS": 16 // options["GROUP"]}, {"num_warps": 4, "num_stages": 2}
    wide = options["PADDED"] > 128  # where registers for the sums of 128 rows are short
    packed = 64 if wide else 128
    launch = {"num_warps": 8, "num_stages": 2 if wide else 3, "maxnreg": 255}
    if options["SCALED"] or (not wide and options["HEAD_DIM"] < options["PADDED"]):  # both take registers, too
        options["TILE"] = 32
    return options | {"PACKED": packed, "TOKENS": packed // options["GROUP"]}, launch


@triton.jit
def which(starts, tile, rows, TOKENS: tl.constexpr):
    """(row of a tile, its first token counted from the row's start); row -1 for tiles before the first row."""
    row = tile * 0 - 1
    high = row + 1 + rows
    while row < high:  # where row r's tiles begin, starts[r] // TOKENS + r, grows with r
        middle = (row + high + 1) // 2
        begun = tl.load(starts + middle) // TOKENS + middle <= tile
        row = tl.where(begun, middle, row)
        high = tl.where(begun, high, middle - 1)
    return row, (tile - row - tl.load(starts + row, mask=row >= 0, other=0) // TOKENS) * TOKENS


@triton.jit
def step(
    total, weight, peak, q, keys, values, key_scales, value_scales, table, at, position, low, high, factor, cap,
    block_stride, slot_stride, scale_block_stride,
    HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, PRODUCT: tl.constexpr, SCALED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The keys of positions at + [0, TILE), of which [low, high) may be read; all are seen unless MASKED."""
    positions = at + tl.arange(0, TILE)
    there = (positions >= low) & (positions < high)
    block, slot = place(table, at, there, BLOCK_SIZE, TILE)
    offsets = block * block_stride + slot * slot_stride
    k = fetch(keys, offsets, there, HEAD_DIM, PADDED, MASKED, q.dtype)
    v = fetch(values, offsets, there, HEAD_DIM, PADDED, MASKED, PRODUCT)
    key_scale, value_scale = there, there
    if SCALED:
        scale_at = block * scale_block_stride + slot
        key_scale = tl.load(key_scales + scale_at, mask=there, other=0)
        value_scale = tl.load(value_scales + scale_at, mask=there, other=0)
    seen = (positions[None, :] <= position[:, None]) & there[None, :]
    if WINDOW > 0:
        seen = seen & (positions[None, :] > position[:, None] - WINDOW)
    total, weight, peak, _ = attend(
        total, weight, peak, 0, q, k, v, seen, factor, cap, key_scale, value_scale, CAPPED, MASKED, SCALED, False
    )
    return total, weight, peak


@triton.jit(
    do_not_specialize=["table_stride", "tokens", "rows"],
    do_not_specialize_on_alignment=["table", "lengths", "starts"],  # as in paged_decode.py
)
def _prefill(
    queries, keys, values, key_scales, value_scales, table, lengths, starts, out, factor, cap,
    query_stride, query_head_stride, block_stride, head_stride, slot_stride, scale_block_stride, scale_head_stride,
    table_stride, out_stride, out_head_stride,
    tokens, rows, kv_heads,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, PRODUCT: tl.constexpr, SCALED: tl.constexpr, PACKED: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    """One tile of tokens of one row, for the queries that share a head of keys."""
    program = tl.program_id(0)
    row, skipped = which(starts, tl.num_programs(0) // kv_heads - 1 - program // kv_heads, rows, TOKENS)
    if row < 0:
        return
    last = tl.load(starts + row + 1, mask=row < rows, other=tokens)
    begin = tl.load(starts + row) + skipped
    if begin >= last:
        return
    length = tl.load(lengths + row, mask=row < rows, other=0)
    kv_head = (program % kv_heads).to(tl.int64)
    packed, dims = tl.arange(0, PACKED), tl.arange(0, PADDED)
    token, head = begin + packed // GROUP, kv_head * GROUP + packed % GROUP
    inside = ((packed < TOKENS * GROUP) & (token < last))[:, None] & (dims < HEAD_DIM)[None, :]
    token = token.to(tl.int64)
    q_at = queries + token[:, None] * query_stride + head[:, None] * query_head_stride + dims[None, :]
    q = tl.load(q_at, mask=inside, other=0.0)
    if q.dtype != tl.float16:  # which holds keys of 8 bits; converted, it would take registers instead of shared memory
        q = q.to(PRODUCT)
    first = length - last + begin  # position of the tile's first token; the others' follow
    position = first + packed // GROUP
    high = tl.minimum(first + TOKENS, length)
    low = tl.maximum(first - WINDOW + 1, 0) if WINDOW > 0 else 0
    masked = low // TILE * TILE if WINDOW > 0 else tl.maximum(first + 1, 0) // TILE * TILE
    keys += kv_head * head_stride
    values += kv_head * head_stride
    if SCALED:
        key_scales += kv_head * scale_head_stride
        value_scales += kv_head * scale_head_stride
    table += row.to(tl.int64) * table_stride
    total = tl.zeros([PACKED, PADDED], tl.float32)
    weight = tl.zeros([PACKED], tl.float32)
    peak = tl.full([PACKED], float("-inf"), tl.float32)
    if WINDOW == 0:
        for at in range(0, masked, TILE):  # tiles that all tokens see all of
            total, weight, peak = step(
                total, weight, peak, q, keys, values, key_scales, value_scales, table, at, position, low, high, factor,
                cap, block_stride, slot_stride, scale_block_stride,
                HEAD_DIM, PADDED, BLOCK_SIZE, TILE, WINDOW, CAPPED, PRODUCT, SCALED, False,
            )  # fmt: skip
    for at in range(masked, high, TILE):
        total, weight, peak = step(
            total, weight, peak, q, keys, values, key_scales, value_scales, table, at, position, low, high, factor,
            cap, block_stride, slot_stride, scale_block_stride,
            HEAD_DIM, PADDED, BLOCK_SIZE, TILE, WINDOW, CAPPED, PRODUCT, SCALED, True,
        )  # fmt: skip
    total = total / tl.where(weight == 0, 1.0, weight)[:, None]
    o_at = out + token[:, None] * out_stride + head[:, None] * out_head_stride + dims[None, :]
    tl.store(o_at, total.to(out.dtype.element_ty), mask=inside)
