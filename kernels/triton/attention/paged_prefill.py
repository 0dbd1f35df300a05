"""Paged attention for prompts and mixed batches; the formula and the layout stand in kernels/pages.py.

The tokens of row r are [starts[r], starts[r + 1]) of the flat batch, the last ones of its `lengths[r]` positions; their
keys and values are in the pools already. A program takes a few tokens of one row for one head of keys: each token with
each query of the group is a row of the product, so that all of them share the keys that are read. Of a group that is
larger than a program it takes a part, for one token.

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

from ...pages import (
    FURTHEST,
    ByHead,
    Pages,
    Scoring,
    bytes_of,
    check,
    check_by_head,
    check_ends,
    check_out,
    check_starts,
    new_out,
    strides,
)
from .decode_launch import is_narrow
from .tiles import PLAIN, Scratch, attend, constants, factors, fetch, heads_of, place

TILE_BYTES = 16384  # of a tile of keys
LEAST = 512  # positions worth a split of their own
MOST_SPLITS = 16
WAVES = 4  # programs a multiprocessor that are launched at most, where many find nothing to do


def split_count(tokens: int, rows: int, heads: int, keys: Tensor, longest: int, processors: int, room: int = 0) -> int:
    """In how many parts to divide the keys of `tokens` of `rows`, which see up to `longest` positions.

    A few tokens behind a long context, as the next turn of a chat has, are too few programs for the device; one is all
    that a multiprocessor holds. `room`: rows for which programs are launched, of which most may be none.
    """
    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    packed, group = 64 if head_dim > 128 else 128, heads // kv_heads
    tiles, columns = tokens // max(1, packed // group), kv_heads * -(-group // packed)
    wanted = processors // ((tiles + rows) * columns)
    bound = WAVES * processors // ((tiles + room + 1) * columns)
    return max(1, min(wanted, bound, -(-longest // LEAST), MOST_SPLITS))


def paged_prefill(
    queries: Tensor,
    starts: Tensor,
    pages: Pages,
    scoring: Scoring,
    out: Tensor | None = None,
    scratch: Scratch | None = None,
    by_head: ByHead = PLAIN,
    fixed: bool = False,
    ends: Tensor | None = None,
) -> Tensor:
    """Causal attention of all rows' tokens: `out` [tokens, heads, value_dim], as `queries`.

    queries  [tokens, heads, key_dim] float32, float16 or bfloat16; heads a multiple of kv_heads, by 1 to 128
    starts   int32 [rows + 1], not decreasing, at most `tokens`
    pages    as for paged_decode; a token of row r is at position lengths[r] - starts[r + 1] + its index
    scratch  made for as many queries as there are from starts[0] on, or more; its number of splits is taken
    fixed    a token has the same bits however its row is cut into chunks: whether a tile of keys is masked would else
             decide which products are rounded before they are added to
    ends     int64 [tokens]: a token sees the positions before this one, too, if it is behind its own; all of them are
             there by now
    Tokens from starts[rows] on, and those at positions below 0, give zeros; those before starts[0] are not written.
    Sums are float32 (weights of the product with values are rounded to the type of values).
    """
    check(queries, pages)
    check_starts(starts, pages)
    check_by_head(by_head, queries)
    check_ends(ends, queries)
    out = new_out(queries, pages) if out is None else out
    check_out(out, queries, pages)
    tokens, heads = queries.shape[:2]
    rows, kv_heads = len(pages.lengths), pages.keys.shape[1]
    narrow = is_narrow(queries.device)
    options, launch = configuration(queries.dtype, pages.keys, heads, scoring, pages.values, by_head, narrow)
    if ends is not None and options["REST"]:
        raise ValueError("ends: tokens see what is behind them where keys and values are apart, not of latents")
    launched: dict[str, Any] = launch | ({"enable_fp_fusion": False} if fixed else {})
    programs = (tokens // options["TOKENS"] + rows + 1) * kv_heads * options["PARTS"]
    splits = 1 if scratch is None else scratch.splits(out)
    partial, sums = (out, out) if scratch is None or splits == 1 else scratch[:2]
    if splits > 1 and partial.numel() >= FURTHEST:
        raise ValueError(f"scratch {list(partial.shape)} is too large: it is for few tokens")
    _prefill[programs, splits](
        queries, *bytes_of(pages), pages.blocks, pages.lengths, starts, out, partial, sums, *factors(scoring),
        *queries.stride()[:2], *strides(pages), pages.blocks.stride(0), *out.stride()[:2],
        tokens, rows, kv_heads, *pages.values.stride()[:3], *heads_of(by_head, out), starts if ends is None else ends,
        **options, DIVIDED=splits > 1, LEAST=LEAST, ENDS=ends is not None, **launched,
    )  # fmt: skip
    if splits > 1:
        sizes = {name: options[name] for name in ("VALUE_DIM", "VALUE_PADDED")}
        _merge_tokens[heads, min(tokens, len(partial))](
            partial, sums, starts, out, *out.stride()[:2], heads, tokens, splits, **sizes, num_warps=4
        )
    return out


def configuration(
    dtype: torch.dtype,
    keys: Tensor,
    heads: int,
    scoring: Scoring,
    values: Tensor | None = None,
    by_head: ByHead = PLAIN,
    narrow: bool = False,
) -> tuple[dict[str, Any], dict[str, int]]:
    """(what the kernel is compiled for, by shape and type; how it is launched). Without `values` they are as keys.

    `narrow`: for a device whose programs have 99 KB of shared memory, where 64 queries of latents take 112.
    """
    options = constants(dtype, keys, heads, scoring, TILE_BYTES, values, by_head)
    if dtype == torch.float32:  # as in paged_decode.py
        wide = options["PADDED"] > 256 and not options["REST"]  # queries and results take registers enough
        stages = 1 if options["SCALED"] or wide else 2
        return options | {"TILE": 16} | packing(16, options["GROUP"]), {"num_warps": 4, "num_stages": stages}
    wide = max(options["PADDED"], options["VALUE_PADDED"]) > 128  # where registers for the sums of 128 rows are short
    packed = 64 if wide else 128
    if options["SCALED"] and options["PADDED"] > 256:  # what is converted takes registers beside these sums
        packed = 32
    if narrow and (options["REST"] or options["CHUNK"]):  # of the latter sm_120 has registers for no more
        packed = 32 if options["REST"] else 64
    launch = {"num_warps": 8, "num_stages": 2 if wide else 3, "maxnreg": 255}
    padded = not wide and options["HEAD_DIM"] < options["PADDED"]
    if options["SCALED"] or padded or options["CHUNK"] or options["REST"]:  # each takes registers, or is read once
        options["TILE"] = 32
    return options | packing(packed, options["GROUP"]), launch


def packing(rows: int, group: int) -> dict[str, int]:
    """How many tokens are the rows of a product, or in how many parts the queries of one token."""
    return {"PACKED": rows, "TOKENS": max(1, rows // group), "PARTS": triton.cdiv(group, rows)}


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
    total, weight, peak, q, q_rest, keys, values, key_scales, value_scales, table, at, position, low, high, factor, cap,
    block_stride, slot_stride, scale_block_stride, value_block_stride, value_slot_stride, slope,
    HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, PRODUCT: tl.constexpr, SCALED: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr, APART: tl.constexpr, CHUNK: tl.constexpr, SLOPES: tl.constexpr,
    REST: tl.constexpr, REST_PADDED: tl.constexpr, MASKED: tl.constexpr, ENDS: tl.constexpr, furthest,
):  # fmt: skip
    """The keys of positions at + [0, TILE), of which [low, high) may be read; all are seen unless MASKED. With ENDS
    `furthest` is up to where each token sees."""
    positions = at + tl.arange(0, TILE)
    there = (positions >= low) & (positions < high)
    block, slot = place(table, at, there, BLOCK_SIZE, TILE)
    slots = slot * slot_stride
    if REST > 0:  # which leaves few registers: it is known to be positive, so that the upper halves need none
        slots = slots.to(tl.uint32)
    offsets = block * block_stride + slots
    k = fetch(keys, offsets, there, HEAD_DIM, PADDED, MASKED, q.dtype)
    k_rest = k
    if REST > 0:
        k_rest = fetch(keys + HEAD_DIM, offsets, there, REST, REST_PADDED, MASKED, q.dtype)
        v = k
    else:
        if APART:
            offsets = block * value_block_stride + slot * value_slot_stride
        v = fetch(values, offsets, there, VALUE_DIM, VALUE_PADDED, MASKED, PRODUCT)
    key_scale, value_scale = there, there
    if SCALED:
        scale_at = block * scale_block_stride + slot
        key_scale = tl.load(key_scales + scale_at, mask=there, other=0)
        value_scale = tl.load(value_scales + scale_at, mask=there, other=0)
    if ENDS:
        seen = (positions[None, :] <= furthest[:, None]) & there[None, :]
    else:
        seen = (positions[None, :] <= position[:, None]) & there[None, :]
    if WINDOW > 0:
        seen = seen & (positions[None, :] > position[:, None] - WINDOW)
    if CHUNK > 0:
        seen = seen & (positions[None, :] >= position[:, None] // CHUNK * CHUNK)
    total, weight, peak, _ = attend(
        total, weight, peak, 0, q, k, v, q_rest, k_rest, seen, factor, cap, key_scale, value_scale,
        slope, positions[None, :] - position[:, None], CAPPED, MASKED, SCALED, False, SLOPES, REST,
    )  # fmt: skip
    return total, weight, peak


@triton.jit(
    do_not_specialize=["table_stride", "tokens", "rows"],
    do_not_specialize_on_alignment=["table", "lengths", "starts", "sinks", "slopes", "ends"],  # as in paged_decode.py
)
def _prefill(
    queries, keys, values, key_scales, value_scales, table, lengths, starts, out, partial, sums, factor, cap,
    query_stride, query_head_stride, block_stride, head_stride, slot_stride, scale_block_stride, scale_head_stride,
    table_stride, out_stride, out_head_stride,
    tokens, rows, kv_heads, value_block_stride, value_head_stride, value_slot_stride, sinks, slopes, ends,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, PRODUCT: tl.constexpr, SCALED: tl.constexpr, PACKED: tl.constexpr,
    TOKENS: tl.constexpr, DIVIDED: tl.constexpr, LEAST: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr, APART: tl.constexpr, CHUNK: tl.constexpr,
    SINKS: tl.constexpr, SLOPES: tl.constexpr, PARTS: tl.constexpr, REST: tl.constexpr, REST_PADDED: tl.constexpr,
    ENDS: tl.constexpr,
):  # fmt: skip
    """One tile of tokens of one row, for the queries that share a head of keys, over all they see or a split of it."""
    program, columns = tl.program_id(0), kv_heads * PARTS
    row, skipped = which(starts, tl.num_programs(0) // columns - 1 - program // columns, rows, TOKENS)
    if row < 0:
        return
    last = tl.load(starts + row + 1, mask=row < rows, other=tokens)
    begin = tl.load(starts + row) + skipped
    if begin >= last:
        return
    length = tl.load(lengths + row, mask=row < rows, other=0)
    kv_head = (program % columns // PARTS).to(tl.int64)
    packed, dims = tl.arange(0, PACKED), tl.arange(0, PADDED)
    if PARTS > 1:  # then TOKENS is 1
        packed += program % PARTS * PACKED
    token, head = begin + packed // GROUP, kv_head * GROUP + packed % GROUP
    inside = ((packed < TOKENS * GROUP) & (token < last))[:, None] & (dims < HEAD_DIM)[None, :]
    token = token.to(tl.int64)
    q_at = queries + token[:, None] * query_stride + head[:, None] * query_head_stride + dims[None, :]
    q = tl.load(q_at, mask=inside, other=0.0)
    if q.dtype != tl.float16:  # which holds keys of 8 bits; converted, it would take registers instead of shared memory
        q = q.to(PRODUCT)
    q_rest = q
    if REST > 0:
        rest = tl.arange(0, REST_PADDED)
        beside = ((packed < TOKENS * GROUP) & (token < last))[:, None] & (rest < REST)[None, :]
        rest_at = queries + token[:, None] * query_stride + head[:, None] * query_head_stride + HEAD_DIM + rest[None, :]
        q_rest = tl.load(rest_at, mask=beside, other=0.0).to(q.dtype)
    first = length - last + begin  # position of the tile's first token; the others' follow
    position = first + packed // GROUP
    high, furthest = tl.minimum(first + TOKENS, length), position
    if ENDS:
        behind = tl.load(ends + token, mask=(packed < TOKENS * GROUP) & (token < last), other=0).to(tl.int32)
        furthest = tl.maximum(position, behind - 1)
        high = tl.minimum(tl.maximum(high, tl.max(behind, 0)), length)
    low = tl.maximum(first - WINDOW + 1, 0) if WINDOW > 0 else 0
    # one loop, of tiles that are masked; of latents and of heads above 256 two take registers
    one: tl.constexpr = (WINDOW > 0) | (REST > 0) | (PADDED > 256)
    masked = low // TILE * TILE if one else tl.maximum(first + 1, 0) // TILE * TILE
    if (REST > 0) & (WINDOW == 0):  # 0, but unknown before it runs: of a known one slots' offsets would be kept, too
        masked = tl.maximum(0 - tokens, 0)
    start, end = masked if one else 0, high
    if CHUNK > 0:  # what a tile over a border sees, and what begins within a tile of keys, is masked from its start on
        chunk = tl.maximum(first, 0) // CHUNK * CHUNK
        low = tl.maximum(chunk, low)
        start = low // TILE * TILE
        masked = tl.where((start < low) | (first + TOKENS > chunk + CHUNK), start, tl.maximum(masked, start))
    if DIVIDED:
        split, splits = tl.program_id(1), tl.num_programs(1)
        size = tl.maximum(tl.cdiv(tl.cdiv(high - start, TILE), splits), LEAST // TILE) * TILE
        start += split * size
        end = tl.minimum(start + size, high)
        masked = start if one else tl.minimum(tl.maximum(masked, start), tl.maximum(end, start))
    keys += kv_head * head_stride
    values += kv_head * (value_head_stride if APART else head_stride)
    if SCALED:
        key_scales += kv_head * scale_head_stride
        value_scales += kv_head * scale_head_stride
    table += row.to(tl.int64) * table_stride
    total = tl.zeros([PACKED, VALUE_PADDED], tl.float32)
    weight = tl.zeros([PACKED], tl.float32)
    peak = tl.full([PACKED], float("-inf"), tl.float32)
    if SINKS:  # as in paged_decode.py
        sink = tl.load(sinks + head, mask=packed < TOKENS * GROUP, other=0.0) * 1.4426950408889634
        peak = tl.where(tl.program_id(1) == 0, sink, peak)
        weight = tl.where(tl.program_id(1) == 0, 1.0, weight)
    slope = packed
    if SLOPES:
        slope = tl.load(slopes + head, mask=packed < TOKENS * GROUP, other=0.0) * 1.4426950408889634
    if not one:
        for at in range(start, masked, TILE):  # tiles that all tokens see all of
            total, weight, peak = step(
                total, weight, peak, q, q_rest, keys, values, key_scales, value_scales, table, at, position, low, high,
                factor, cap, block_stride, slot_stride, scale_block_stride, value_block_stride, value_slot_stride,
                slope,
                HEAD_DIM, PADDED, BLOCK_SIZE, TILE, WINDOW, CAPPED, PRODUCT, SCALED,
                VALUE_DIM, VALUE_PADDED, APART, CHUNK, SLOPES, REST, REST_PADDED, False, ENDS, furthest,
            )  # fmt: skip
    for at in range(masked, end, TILE):
        total, weight, peak = step(
            total, weight, peak, q, q_rest, keys, values, key_scales, value_scales, table, at, position, low, high,
            factor, cap, block_stride, slot_stride, scale_block_stride, value_block_stride, value_slot_stride, slope,
            HEAD_DIM, PADDED, BLOCK_SIZE, TILE, WINDOW, CAPPED, PRODUCT, SCALED,
            VALUE_DIM, VALUE_PADDED, APART, CHUNK, SLOPES, REST, REST_PADDED, True, ENDS, furthest,
        )  # fmt: skip
    again = tl.arange(0, PACKED)  # made anew, here and below: kept, they would take registers in the loops
    if REST > 0:
        again += (weight < 0).to(tl.int32)  # nothing, but known behind them alone
    weight = tl.where(weight == 0, 1.0, weight)
    total = total / weight[:, None]
    if DIVIDED:
        heads = kv_heads * GROUP
        if PARTS > 1:
            again += program % PARTS * PACKED
        behind = begin - tl.load(starts) + again // GROUP
        part = (behind * heads + program % columns // PARTS * GROUP + again % GROUP) * splits + split
        there = (again < TOKENS * GROUP) & (begin + again // GROUP < last)
        dims = tl.arange(0, VALUE_PADDED) if VALUE_DIM != HEAD_DIM else dims
        inside = there[:, None] & (dims < VALUE_DIM)[None, :]
        tl.store(partial + part[:, None] * VALUE_DIM + dims[None, :], total, mask=inside)
        tl.store(sums + part, peak + tl.log2(weight), mask=there)  # -inf where nothing was seen
    else:
        if REST > 0:
            packed = again
            if PARTS > 1:
                packed += program % PARTS * PACKED
            out += begin.to(tl.int64) * out_stride + kv_head * GROUP * out_head_stride
            token, head = packed // GROUP, packed % GROUP
            inside = ((packed < TOKENS * GROUP) & (first + token < high))[:, None] & (dims < VALUE_DIM)[None, :]
        if VALUE_DIM != HEAD_DIM:
            dims = tl.arange(0, VALUE_PADDED)
            inside = ((packed < TOKENS * GROUP) & (token < last))[:, None] & (dims < VALUE_DIM)[None, :]
        o_at = out + token[:, None] * out_stride + head[:, None] * out_head_stride + dims[None, :]
        tl.store(o_at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "splits"], do_not_specialize_on_alignment=["starts"])
def _merge_tokens(
    partial, sums, starts, out, out_stride, out_head_stride, heads, tokens, splits,
    VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
):  # fmt: skip
    """One head of one token: its splits' results, weighed by their sums."""
    head = tl.program_id(0)
    index = tl.program_id(1).to(tl.int64)
    token = tl.load(starts) + index
    if token >= tokens:
        return
    part = (index * heads + head) * splits
    dims = tl.arange(0, VALUE_PADDED)
    some = tl.arange(0, 16)  # MOST_SPLITS
    logs = tl.load(sums + part + some, mask=some < splits, other=float("-inf"))
    highest = tl.max(logs, 0)
    shares = tl.exp2(logs - tl.where(highest == float("-inf"), 0.0, highest))
    inside = (shares > 0)[:, None] & (dims < VALUE_DIM)[None, :]
    results = tl.load(partial + (part + some)[:, None] * VALUE_DIM + dims[None, :], mask=inside, other=0.0)
    weight = tl.sum(shares, 0)
    total = tl.sum(shares[:, None] * results, 0) / tl.where(weight == 0, 1.0, weight)
    o_at = out + token * out_stride + head.to(tl.int64) * out_head_stride + dims
    tl.store(o_at, total.to(out.dtype.element_ty), mask=dims < VALUE_DIM)
