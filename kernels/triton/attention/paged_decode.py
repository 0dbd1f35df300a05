"""Paged attention for decoding: one query token a row; the formula and the layout stand in kernels/pages.py.

A row's positions are divided among `splits` programs for each head of keys. Each works through tiles of keys with a
running softmax, the queries of the group as the rows of one product (16 of them, of latents up to 64), and leaves its
normalised result and the log-sum-exp of its scores; `_merge` weighs them:
    L_s = log₂ Σ_j∈s 2^(s_j · log₂e)     out = Σ_s 2^(L_s - max L) · out_s / Σ_s 2^(L_s - max L)
The grid depends on the number of rows, heads and splits only, and lengths are read on the device: a graph that captured
it serves any lengths. A program divides its own row, so that a short row in a wide grid is not cut into crumbs.

Compiled ahead of time and checked in the interpreter; not run on a GPU yet, so tile sizes and the number of splits
(decode_launch.py) are computed, not measured.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...pages import ByHead, Pages, Scoring, bytes_of, check, check_by_head, check_out, new_out, strides
from ..quantised_kv import E4M3, scale_of
from .decode_launch import (
    MOST_ROWS,
    QUERIES,
    QUERIES_OF_A_PLACE,
    QUERIES_OF_LATENTS,
    TABLE,
    DecodeLaunch,
    is_narrow,
    kind_of,
)
from .tiles import PLAIN, Scratch, are_latents, attend, constants, factors, fetch, heads_of, place


def split_count(rows: int, places: int, longest: int, processors: int, kind: str = "16 bits") -> int:
    """In how many parts to divide rows of up to `longest` positions so that they fill `processors` multiprocessors.

    `places` of a row (decode_launch.py: places_of); `kind` of the table.
    """
    return TABLE[kind].splits(rows, places, longest, processors)


def paged_decode(
    queries: Tensor,
    pages: Pages,
    scoring: Scoring,
    scratch: Scratch | None = None,
    out: Tensor | None = None,
    by_head: ByHead = PLAIN,
    launch: DecodeLaunch | None = None,
) -> Tensor:
    """Attention of one token a row, at the row's last position: `out` [rows, heads, value_dim], as `queries`.

    queries  [rows, heads, key_dim] float32, float16 or bfloat16; heads a multiple of kv_heads, by 1 to 128
    pages    keys and values of the same type, or of 8 bits; row r has `lengths[r]` positions; 0 gives zeros
    scratch  of as many rows or more; its number of splits is taken; none: rows are not divided
    launch   in place of the table's
    Sums are float32 (weights of the product with values are rounded to the type of values).
    """
    check(queries, pages)
    check_by_head(by_head, queries)
    out = new_out(queries, pages) if out is None else out
    check_out(out, queries, pages)
    rows, heads, _ = queries.shape
    if rows > MOST_ROWS:
        raise ValueError(f"{rows} rows, and a launch takes {MOST_ROWS}")
    if len(pages.lengths) != rows:
        raise ValueError(f"{len(pages.lengths)} lengths for {rows} rows of queries")
    splits = 1 if scratch is None else scratch.splits(out)
    if scratch is not None and len(scratch.partial) < rows:
        raise ValueError(f"scratch for {len(scratch.partial)} rows, and there are {rows}")
    if not rows:
        return out
    launch = TABLE[kind_of_keys(queries.dtype, pages.keys, pages.values)] if launch is None else launch
    given = queries.dtype, pages.keys, heads, scoring, pages.values, by_head, launch, is_narrow(queries.device)
    options, launched = configuration(*given)
    options["DIVIDED"] = splits > 1
    least = launch.worth(rows) if scratch is None or scratch.least is None else scratch.least
    kv_heads = pages.keys.shape[1]
    partial, sums = (out, out) if scratch is None or splits == 1 else scratch[:2]
    _decode[splits, kv_heads * options["PARTS"], rows](
        queries, *bytes_of(pages), pages.blocks, pages.lengths, out, partial, sums, *factors(scoring),
        *queries.stride()[:2], *strides(pages), pages.blocks.stride(0), *out.stride()[:2], least,
        *pages.values.stride()[:3], *heads_of(by_head, out), **options, **launched,
    )  # fmt: skip
    if splits > 1:
        shared = {name: options[name] for name in ("VALUE_DIM", "VALUE_PADDED", "TILE", "WINDOW", "CHUNK")}
        _merge[heads, rows](
            partial, sums, pages.lengths, out, *out.stride()[:2], heads, splits, least, **shared, num_warps=4
        )
    return out


def configuration(
    dtype: torch.dtype,
    keys: Tensor,
    heads: int,
    scoring: Scoring,
    values: Tensor | None = None,
    by_head: ByHead = PLAIN,
    launch: DecodeLaunch | None = None,
    narrow: bool = False,
) -> tuple[dict[str, Any], dict[str, int]]:
    """(what the kernel is compiled for, by shape and type; how it is launched). Without `values` they are as keys.

    `narrow`: for a device whose programs have 99 KB of shared memory.
    """
    launch = TABLE[kind_of_keys(dtype, keys, values)] if launch is None else launch
    options = constants(dtype, keys, heads, scoring, launch.tile_bytes, values, by_head)
    most = QUERIES
    if options["REST"] and dtype != torch.float32:
        most = QUERIES_OF_A_PLACE if narrow else QUERIES_OF_LATENTS
    options["QUERIES"] = min(most, max(QUERIES, triton.next_power_of_2(options["GROUP"])))
    options["PARTS"] = triton.cdiv(options["GROUP"], options["QUERIES"])
    options["UNITED"] = options["SCALED"] and dtype != torch.float32
    options["TILE"] = launch.tile(options["PADDED"], keys.dtype.itemsize)
    if options["UNITED"]:  # one instruction makes two float16 of two numbers of 8 bits; bfloat16 takes three steps
        options["PRODUCT"] = tl.float16
    launched = {"num_warps": launch.warps, "num_stages": launch.stages}
    if options["QUERIES"] > QUERIES:  # whose sums leave no registers for a table that is read a turn ahead
        launched = {"num_warps": 8, "num_stages": 2}
    return options, launched if launch.registers is None else launched | {"maxnreg": launch.registers}


def kind_of_keys(dtype: torch.dtype, keys: Tensor, values: Tensor | None = None) -> str:
    padded = triton.next_power_of_2(keys.shape[3])
    return kind_of(dtype, padded, keys.dtype == E4M3, are_latents(keys, keys if values is None else values))


@triton.jit
def portion(length, splits, least, WINDOW: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr):
    """(first position seen, where the first split starts, positions of a split), starts at multiples of TILE."""
    first = tl.maximum(length - WINDOW, 0) if WINDOW > 0 else 0
    if CHUNK > 0:
        first = tl.maximum(tl.maximum(length - 1, 0) // CHUNK * CHUNK, first)
    start = first // TILE * TILE
    tiles = tl.cdiv(length - start, TILE)
    return first, start, tl.maximum(tl.maximum(tl.cdiv(tiles, splits), least // TILE), 1) * TILE


# Views of the step's rows begin anywhere, so that no kernel may depend on where they do: it would be compiled again in
# the middle of requests.
@triton.jit(
    do_not_specialize=["table_stride", "least"],
    do_not_specialize_on_alignment=["table", "lengths", "sinks", "slopes"],
)
def _decode(
    queries, keys, values, key_scales, value_scales, table, lengths, out, partial, sums, factor, cap,
    query_stride, query_head_stride, block_stride, head_stride, slot_stride, scale_block_stride, scale_head_stride,
    table_stride, out_stride, out_head_stride, least,
    value_block_stride, value_head_stride, value_slot_stride, sinks, slopes,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, PRODUCT: tl.constexpr, SCALED: tl.constexpr,
    UNITED: tl.constexpr, DIVIDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr, APART: tl.constexpr, CHUNK: tl.constexpr,
    SINKS: tl.constexpr, SLOPES: tl.constexpr, PARTS: tl.constexpr, QUERIES: tl.constexpr,
    REST: tl.constexpr, REST_PADDED: tl.constexpr,
):  # fmt: skip
    """One split of one row, for up to QUERIES of the group that share a head of keys."""
    split = tl.program_id(0)
    splits = tl.num_programs(0)
    kv_head = (tl.program_id(1) // PARTS).to(tl.int64)
    row = tl.program_id(2).to(tl.int64)
    length = tl.load(lengths + row)
    first, start, size = portion(length, splits, least, WINDOW, CHUNK, TILE)
    begin = start + split * size
    end = tl.minimum(begin + size, length)
    if (begin >= end) & DIVIDED:
        return
    heads, dims = tl.arange(0, QUERIES), tl.arange(0, PADDED)
    if PARTS > 1:
        heads += tl.program_id(1) % PARTS * QUERIES
    inside = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    head = kv_head * GROUP + heads
    q_at = queries + row * query_stride + head[:, None] * query_head_stride + dims[None, :]
    q = tl.load(q_at, mask=inside, other=0.0)
    if UNITED:  # scaled so that the largest of each head is 1 to 2: float16 holds it, and loses nothing that counts
        code = tl.minimum(tl.maximum((tl.max(tl.abs(q.to(tl.float32)), 1).to(tl.int32, bitcast=True) >> 23), 1), 253)
        q = q.to(tl.float32) * scale_of(254 - code)[:, None]
        factor = factor * scale_of(code)[:, None]
    q = q.to(PRODUCT)
    q_rest = q
    if REST > 0:
        rest = tl.arange(0, REST_PADDED)
        rest_at = queries + row * query_stride + head[:, None] * query_head_stride + HEAD_DIM + rest[None, :]
        q_rest = tl.load(rest_at, mask=(heads < GROUP)[:, None] & (rest < REST)[None, :], other=0.0).to(PRODUCT)
    total = tl.zeros([QUERIES, VALUE_PADDED], tl.float32)
    weight = tl.zeros([QUERIES], tl.float32)
    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    if SINKS:  # of the first split; in units of log₂, as scores are
        sink = tl.load(sinks + head, mask=heads < GROUP, other=0.0) * 1.4426950408889634
        peak = tl.where(split == 0, sink, peak)
        weight = tl.where(split == 0, 1.0, weight)
    slope = heads
    if SLOPES:
        slope = tl.load(slopes + head, mask=heads < GROUP, other=0.0) * 1.4426950408889634
    unit = split * 0 + 1
    for at in range(begin, end, TILE):
        positions = at + tl.arange(0, TILE)
        seen = (positions >= first) & (positions < end)
        block, slot = place(table + row * table_stride, at, seen, BLOCK_SIZE, TILE)
        slots = slot * slot_stride
        if REST > 0:  # as in paged_prefill.py
            slots = slots.to(tl.uint32)
        offsets = block * block_stride + slots
        k = fetch(keys + kv_head * head_stride, offsets, seen, HEAD_DIM, PADDED, True, PRODUCT)
        k_rest = k
        if REST > 0:
            k_rest = fetch(keys + kv_head * head_stride + HEAD_DIM, offsets, seen, REST, REST_PADDED, True, PRODUCT)
            v = k
        elif APART:
            v_offsets = block * value_block_stride + slot * value_slot_stride
            v = fetch(values + kv_head * value_head_stride, v_offsets, seen, VALUE_DIM, VALUE_PADDED, True, PRODUCT)
        else:
            v = fetch(values + kv_head * head_stride, offsets, seen, VALUE_DIM, VALUE_PADDED, True, PRODUCT)
        key_scale, value_scale = seen, seen
        if SCALED:
            scale_at = block * scale_block_stride + kv_head * scale_head_stride + slot
            key_scale = tl.load(key_scales + scale_at, mask=seen, other=0)
            value_scale = tl.load(value_scales + scale_at, mask=seen, other=0)
        total, weight, peak, unit = attend(
            total, weight, peak, unit, q, k, v, q_rest, k_rest, seen[None, :], factor, cap, key_scale, value_scale,
            slope, (positions - length + 1)[None, :], CAPPED, True, SCALED, UNITED, SLOPES, REST,
        )  # fmt: skip
    if REST > 0:  # made anew of what is known behind the loop alone: kept, they would take registers in it
        heads = tl.arange(0, QUERIES) + (weight < 0).to(tl.int32)
        if PARTS > 1:
            heads += tl.program_id(1) % PARTS * QUERIES
        head = kv_head * GROUP + heads
        inside = (heads < GROUP)[:, None] & (dims < VALUE_DIM)[None, :]
    total = total / tl.where(weight == 0, 1.0, weight)[:, None]
    if UNITED:
        total = total * scale_of(unit)
    if VALUE_DIM != HEAD_DIM:
        dims = tl.arange(0, VALUE_PADDED)
        inside = (heads < GROUP)[:, None] & (dims < VALUE_DIM)[None, :]
    if not DIVIDED:
        o_at = out + row * out_stride + head[:, None] * out_head_stride + dims[None, :]
        tl.store(o_at, total.to(out.dtype.element_ty), mask=inside)
    else:
        part = (row * (tl.num_programs(1) // PARTS) * GROUP + head) * splits + split
        tl.store(sums + part, peak + tl.log2(weight), mask=heads < GROUP)  # whose registers the results may have then
        tl.store(partial + part[:, None] * VALUE_DIM + dims[None, :], total, mask=inside)


@triton.jit(do_not_specialize=["splits", "least"], do_not_specialize_on_alignment=["lengths"])
def _merge(
    partial, sums, lengths, out, out_stride, out_head_stride, heads, splits, least,
    VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One head of one row: its splits' results, weighed by their sums."""
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + row)
    _, start, size = portion(length, splits, least, WINDOW, CHUNK, TILE)
    used = tl.cdiv(length - start, size)
    part = (row * heads + head) * splits
    dims = tl.arange(0, VALUE_PADDED)
    total = tl.zeros([VALUE_PADDED], tl.float32)
    weight = 0.0
    peak = float("-inf")
    for at in range(0, used, 8):  # running, as in `attend`; each turn has at least one split
        some = at + tl.arange(0, 8)
        there = some < used
        logs = tl.load(sums + part + some, mask=there, other=float("-inf"))
        higher = tl.maximum(peak, tl.max(logs, 0))
        shares = tl.exp2(logs - higher)
        inside = there[:, None] & (dims < VALUE_DIM)[None, :]
        results = tl.load(partial + (part + some)[:, None] * VALUE_DIM + dims[None, :], mask=inside, other=0.0)
        fade = tl.exp2(peak - higher)
        total = total * fade + tl.sum(shares[:, None] * results, 0)
        weight = weight * fade + tl.sum(shares, 0)
        peak = higher
    total = total / tl.where(weight == 0, 1.0, weight)
    o_at = out + row * out_stride + head.to(tl.int64) * out_head_stride + dims
    tl.store(o_at, total.to(out.dtype.element_ty), mask=dims < VALUE_DIM)
