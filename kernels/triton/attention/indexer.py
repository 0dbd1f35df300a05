"""Triton: which tokens each query sees where it sees the likeliest few alone (DeepSeek Sparse Attention).

    score of key k_j for query i = Σ_h weight_ih · max(0, q_ih · k_j)     of which the highest `topk` up to i are seen
Sums are float32. `score_kernel` writes scores as integers in the order of scores, a program for each query and part of
its keys. The slots of those that count are written by selection.py's kernels in the order of positions, so that
attention over them (paged_decode, in blocks of one token) has the same sums each time. Of queries that see no more than
`topk` all are seen, and nothing is scored.

Keys [blocks, 1, block_size, dim] lie beside the latents, found by the same block table. Grids follow from shapes alone,
and lengths are read on the device: a graph captures all kernels for any lengths. Scores take 4 bytes for each query
and position that there may be, so that where queries are many, some are chosen for at a time. Where positions may be
many, several programs choose for a query, the more the fewer queries there are; which kernels are compiled follows from
the former alone, so that no step meets one that is new.

Compiled ahead of time and checked in the interpreter; not run on a GPU yet, so sizes of tiles are computed, not
measured. Knows tensors only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...checked import once_for_each_form
from ...pages import DTYPES
from .decode_launch import NARROW, is_narrow
from .selection import DIGITS, STATE, VALUES, digits_kernel, select_kernel
from .tiles import INTERPRETED, fetch, place

SCORED = 1 << 26  # scores that are there at a time: 256 MiB
PARTS, LEAST = 128, 512  # in which a query's keys are divided at most, and positions worth a part
MOST_HEADS, WIDEST = 128, 256  # of an indexer: its queries stay in shared memory
STEP = 16  # of how many queries at a time, so that views of them begin at multiples of 16 bytes
SUMS = 2048  # bytes of shared memory beside queries and keys, at most
LANES = 2048  # scores that a program chooses from together
UNDIVIDED = 16384  # positions up to which one program chooses for a query: five launches take as long
CHOOSERS, MOST_CHOOSERS = 384, 128  # programs that choose, three a multiprocessor; and of one query
REST = tl.constexpr((1 << 31) - 1)  # all bits but the sign


class ChosenTokens(NamedTuple):
    """What the queries of a step see; layers that choose write `slots`, those behind them may read the same."""

    owners: Tensor  # int32 [tokens]: the row of the block table that is a query's
    lengths: Tensor  # int32 [tokens]: positions up to its own; 0: it is nobody's
    counts: Tensor  # int32 [tokens]: as many of them as it sees
    slots: Tensor  # int32 [tokens, topk]: block · block_size + place in it, of so many


@triton.jit(
    do_not_specialize=["weights_row", "table_row"],
    do_not_specialize_on_alignment=["weights", "table", "owners", "lengths"],  # as in paged_decode.py
)
def score_kernel(
    queries, weights, keys, table, owners, lengths, scores,
    queries_row, queries_head, weights_row, keys_block, keys_slot, table_row, scores_row,
    HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr, TOPK: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """PART keys of one query."""
    token = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * PART
    length = tl.load(lengths + token)
    if (length <= TOPK) | (begin >= length):
        return
    own = table + tl.load(owners + token).to(tl.int64) * table_row
    head, dims = tl.arange(0, HEADS_PADDED), tl.arange(0, DIM_PADDED)
    inside = (head < HEADS)[:, None] & (dims < DIM)[None, :]
    at = queries + token * queries_row + head[:, None] * queries_head + dims[None, :]
    q = tl.load(at, mask=inside, other=0.0).to(PRODUCT)
    weight = tl.load(weights + token * weights_row + head, mask=head < HEADS, other=0.0)[None, :]
    for start in range(begin, tl.minimum(begin + PART, length), TILE):
        positions = start + tl.arange(0, TILE)
        there = positions < length
        block, slot = place(own, start, there, BLOCK_SIZE, TILE)
        k = fetch(keys, block * keys_block + slot * keys_slot, there, DIM, DIM_PADDED, True, PRODUCT)
        products = tl.dot(k, tl.trans(q), input_precision="ieee")
        found = tl.sum(tl.maximum(products, 0.0) * weight, 1)
        found = tl.where(found == 0, 0.0, found)  # -0 is 0
        bits = found.to(tl.int32, bitcast=True)
        tl.store(scores + token * scores_row + positions, bits ^ ((bits >> 31) & REST), mask=there)


def choose_tokens(queries: Tensor, weights: Tensor, keys: Tensor, table: Tensor, chosen: ChosenTokens) -> None:
    """Write `slots` of `chosen`, as many of each query as `counts` says.

    queries   [tokens, heads, dim], float32, float16 or bfloat16
    weights   float32 [tokens, heads]
    keys      [blocks, 1, block_size, dim], as queries; those of the step are there
    table     int32 [rows, blocks of the longest row]
    """
    _check(queries, weights, keys, table, chosen)
    tokens, block_size, longest = len(queries), keys.shape[2], table.shape[1] * keys.shape[2]
    topk = chosen.slots.shape[1]
    options, launched = configuration(queries, keys, longest, topk)
    each = min(tokens, max(1, SCORED // longest // STEP) * STEP)
    scores = torch.empty(each, longest, dtype=torch.int32, device=queries.device)
    for first in range(0, tokens, each):
        some = slice(first, first + each)
        part = ChosenTokens(*(whole[some] for whole in chosen))
        score_kernel[len(part.lengths), triton.cdiv(longest, options["PART"])](
            queries[some], weights[some], keys, table, part.owners, part.lengths, scores, *queries.stride()[:2],
            weights.stride(0), keys.stride(0), keys.stride(2), table.stride(0), longest,
            **options, BLOCK_SIZE=block_size, TOPK=topk, **launched,
        )  # fmt: skip
        select_slots(scores, table, block_size, part)


def select_slots(scores: Tensor, table: Tensor, block_size: int, chosen: ChosenTokens) -> None:
    """Write `slots` of `chosen`, by scores in the order of integers, int32 [as many or more, positions of a row]."""
    (count, topk), longest = chosen.slots.shape, scores.shape[1]
    options: dict[str, Any] = {"LANES": LANES, "TOPK": topk, "num_warps": 8}
    parts = parts_of(count, longest)
    counts = states = scores
    if longest > UNDIVIDED:
        counts = torch.empty(2, count, parts, VALUES.value, dtype=torch.int32, device=scores.device)
        states = torch.empty(count, parts, STATE.value, dtype=torch.int32, device=scores.device)
        for turn in range(DIGITS):
            digits_kernel[count, parts](scores, chosen.lengths, counts, states, turn, longest, **options)
    select_kernel[count, parts](
        scores, table, chosen.owners, chosen.lengths, chosen.slots, counts, states, table.stride(0), longest,
        BLOCK_SIZE=block_size, DIVIDED=longest > UNDIVIDED, **options,
    )  # fmt: skip


def parts_of(queries: int, longest: int) -> int:
    """Programs that choose for each of so many queries of up to so many positions."""
    if longest <= UNDIVIDED:
        return 1
    return max(1, min(CHOOSERS // queries, MOST_CHOOSERS, -(-longest // LANES)))


def has_room(heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a program of `score_kernel` has the shared memory there that queries of so many heads and keys take."""
    rows = max(16, triton.next_power_of_2(heads)) + tile_of(dtype, heads)
    taken = rows * max(16, triton.next_power_of_2(dim)) * dtype.itemsize + SUMS
    return taken <= NARROW or not is_narrow(device)


def tile_of(dtype: torch.dtype, heads: int) -> int:
    """Keys that are scored together. Exact products take many registers."""
    if dtype == torch.float32:
        return 32 if heads <= 64 else 16
    return 64


def configuration(queries: Tensor, keys: Tensor, longest: int, topk: int) -> tuple[dict[str, Any], dict[str, int]]:
    """(what `score_kernel` is compiled for, beside what both kernels are; how it is launched)."""
    heads, dim = queries.shape[1:]
    product = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[queries.dtype]
    options = {
        "HEADS": heads,
        "HEADS_PADDED": max(16, triton.next_power_of_2(heads)),
        "DIM": dim,
        "DIM_PADDED": max(16, triton.next_power_of_2(dim)),
        "TILE": tile_of(queries.dtype, heads),
        "PART": max(LEAST, triton.next_power_of_2(triton.cdiv(longest, PARTS))),
        "PRODUCT": tl.float32 if INTERPRETED else product,  # bfloat16 is raw bits there
    }
    return options, {"num_warps": 8 if queries.dtype == torch.float32 else 4, "num_stages": 3}


@once_for_each_form
def _check(queries: Tensor, weights: Tensor, keys: Tensor, table: Tensor, chosen: ChosenTokens) -> None:
    tokens, heads, dim = queries.shape
    if queries.dtype not in DTYPES or not 0 < heads <= MOST_HEADS or not 0 < dim <= WIDEST or queries.stride(2) != 1:
        raise ValueError(f"queries {queries.dtype}{list(queries.shape)}: up to {MOST_HEADS} heads of {WIDEST} numbers")
    if weights.shape != (tokens, heads) or weights.dtype != torch.float32 or weights.stride(1) != 1:
        raise ValueError(f"weights {weights.dtype}{list(weights.shape)} must be float32 [{tokens}, {heads}]")
    if keys.dim() != 4 or keys.shape[1] != 1 or keys.shape[3] != dim or keys.dtype != queries.dtype:
        raise ValueError(f"keys {keys.dtype}{list(keys.shape)} must be {queries.dtype}[blocks, 1, block_size, {dim}]")
    if table.dtype != torch.int32 or table.dim() != 2 or table.stride(1) != 1 or keys.stride(3) != 1:
        raise ValueError(f"the table {table.dtype}{list(table.shape)} must be int32, its rows and keys side by side")
    for name, part in chosen._asdict().items():
        if part.dtype != torch.int32 or len(part) != tokens or not part.is_contiguous():
            raise ValueError(f"{name} {part.dtype}{list(part.shape)} must be int32, one for each of {tokens} tokens")
