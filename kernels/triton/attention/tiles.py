"""What paged attention for decoding and for prompts have in common: tiles of keys, what each adds to a running softmax,
and what the kernels are compiled for; the formula and the layout stand in kernels/pages.py.

Where values are the first numbers of their keys, as many as a power of two, they are not read again, and what the keys
have beside them is a product of its own: neither is filled up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...pages import ByHead, Scoring
from ..quantised_kv import E4M3, ratio, scale_of, widen
from .decode_launch import MOST_SPLITS

LOG2E = 1.4426950408889634
INTERPRETED = bool(triton.knobs.runtime.interpret)
PLAIN = ByHead()


class Scratch(NamedTuple):
    """Where splits leave their results; layers of one step may share it."""

    partial: Tensor  # float32 [rows, heads, splits, value_dim]
    sums: Tensor  # float32 [rows, heads, splits]: log-sum-exp, base 2
    least: int | None = None  # positions worth a split of a row that decodes; None: as the launch has it

    @classmethod
    def make(cls, queries: Tensor, splits: int, value_dim: int | None = None) -> Scratch:
        """For batches of the shape of `queries` [rows, heads, key_dim]; values are as wide unless it is said."""
        rows, heads, head_dim = queries.shape
        return cls.of(rows, heads, value_dim or head_dim, splits, queries.device)

    @classmethod
    def of(cls, rows: int, heads: int, head_dim: int, splits: int, device: torch.device) -> Scratch:
        """For so many queries of so many heads."""
        options: dict[str, Any] = {"dtype": torch.float32, "device": device}
        return cls(torch.empty(rows, heads, splits, head_dim, **options), torch.empty(rows, heads, splits, **options))

    def of_heads(self, heads: int, head_dim: int) -> Scratch:
        """The same memory for a layer of other heads, which have no more numbers in all, and are no more."""
        rows, own, splits, width = self.partial.shape
        if (heads, head_dim) == (own, width):
            return self
        count = rows * heads * splits
        partial = self.partial.view(-1)[: count * head_dim].view(rows, heads, splits, head_dim)
        return self._replace(partial=partial, sums=self.sums.view(-1)[:count].view(rows, heads, splits))

    def splits(self, out: Tensor) -> int:
        """Their number; ValueError if this is not for results like `out`."""
        partial, sums, _ = self
        heads, head_dim = out.shape[1:]
        splits = partial.shape[2]
        fits = partial.shape == (len(partial), heads, splits, head_dim) and sums.shape == partial.shape[:3]
        if not fits or not 0 < splits <= MOST_SPLITS:
            raise ValueError(f"scratch {list(partial.shape)}, {list(sums.shape)} for results {list(out.shape)}")
        if partial.dtype != torch.float32 or sums.dtype != torch.float32 or partial.device != out.device:
            raise ValueError(f"scratch is {partial.dtype}, {sums.dtype} on {partial.device}")
        if not partial.is_contiguous() or not sums.is_contiguous():
            raise ValueError("scratch is not contiguous")
        return splits


def are_latents(keys: Tensor, values: Tensor) -> bool:
    """Are values the first numbers of keys, as many as a power of two?"""
    width, value_dim = keys.shape[3], values.shape[3]
    same = keys.data_ptr() == values.data_ptr() and keys.stride() == values.stride() and keys.dtype != E4M3
    return same and value_dim < width and value_dim == triton.next_power_of_2(value_dim)


def constants(
    dtype: torch.dtype,
    keys: Tensor,
    heads: int,
    scoring: Scoring,
    tile_bytes: int,
    values: Tensor | None,
    by_head: ByHead,
) -> dict[str, Any]:
    """What kernels are compiled for, with tiles of up to 64 keys. Of latents HEAD_DIM is what values have, too, and
    REST what keys have beside it.
    """
    _, kv_heads, block_size, head_dim = keys.shape
    values = keys if values is None else values
    rest = head_dim - values.shape[3] if are_latents(keys, values) else 0
    head_dim -= rest
    padded = triton.next_power_of_2(head_dim)
    scaled = keys.dtype == E4M3
    product = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[dtype]
    if scaled and dtype == torch.float16:
        product = tl.bfloat16  # weights times scales may be beyond what float16 holds
    if INTERPRETED and product == tl.bfloat16:
        product = tl.float32  # there it is raw bits, which cannot be multiplied
    return {
        "GROUP": heads // kv_heads,
        "HEAD_DIM": head_dim,
        "PADDED": padded,
        "REST": rest,
        "REST_PADDED": max(16, triton.next_power_of_2(rest)),
        "VALUE_DIM": values.shape[3],
        "VALUE_PADDED": triton.next_power_of_2(values.shape[3]),
        "APART": values.stride() != keys.stride(),
        "BLOCK_SIZE": block_size,
        "TILE": max(16, min(64, tile_bytes // (padded * keys.dtype.itemsize))),
        "WINDOW": scoring.window or 0,
        "CHUNK": scoring.chunk or 0,
        "CAPPED": scoring.soft_cap is not None,
        "SINKS": by_head.sinks is not None,
        "SLOPES": by_head.slopes is not None,
        "PRODUCT": product,
        "SCALED": scaled,
    }


def heads_of(by_head: ByHead, otherwise: Tensor) -> tuple[Tensor, Tensor]:
    """Sinks and slopes, or something in their place."""
    return (
        otherwise if by_head.sinks is None else by_head.sinks,
        otherwise if by_head.slopes is None else by_head.slopes,
    )


def factors(scoring: Scoring) -> tuple[float, float]:
    """(what products are multiplied with, the cap), for scores in units of log₂."""
    if scoring.soft_cap is None:
        return scoring.scale * LOG2E, 0.0
    return 2 * scoring.scale / scoring.soft_cap * LOG2E, scoring.soft_cap * LOG2E


@triton.jit
def place(table, start, seen, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """(block, 64 bits, slot) of positions start + [0, TILE); of those that are not `seen`, any that exists."""
    steps = tl.arange(0, TILE)
    if BLOCK_SIZE % TILE == 0:  # tiles start at multiples of TILE: one block holds all of it
        return tl.load(table + start // BLOCK_SIZE).to(tl.int64), start % BLOCK_SIZE + steps
    else:
        positions = start + steps
        return tl.load(table + positions // BLOCK_SIZE, mask=seen, other=0).to(tl.int64), positions % BLOCK_SIZE


@triton.jit
def fetch(
    pool, offsets, seen, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr, PRODUCT: tl.constexpr
):
    """The numbers of the heads at `offsets`, [tile, PADDED]; zeros for what is not seen, be it NaN."""
    dims = tl.arange(0, PADDED)
    numbers = pool + offsets[:, None] + dims[None, :]
    if MASKED:
        return widen(tl.load(numbers, mask=seen[:, None] & (dims < HEAD_DIM)[None, :], other=0), PRODUCT)
    elif HEAD_DIM < PADDED:
        return widen(tl.load(numbers, mask=(dims < HEAD_DIM)[None, :], other=0), PRODUCT)
    else:
        return widen(tl.load(numbers), PRODUCT)


@triton.jit
def attend(
    total, weight, peak, unit, q, k, v, q_rest, k_rest, seen, factor, cap, key_scale, value_scale, slope, away,
    CAPPED: tl.constexpr, MASKED: tl.constexpr, SCALED: tl.constexpr, UNITED: tl.constexpr, SLOPES: tl.constexpr,
    REST: tl.constexpr,
):  # fmt: skip
    """One tile more: total = Σ 2^(s - peak) · v and weight = Σ 2^(s - peak), peak the largest score so far.

    UNITED: v and shares are float16, which holds no scale of values; total is in units of the largest scale so far.
    REST: numbers of queries and keys that stand apart.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if REST > 0:
        scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision="ieee")
    if SCALED:
        scores = scores * scale_of(key_scale)[None, :]
    if CAPPED:  # tanh x = 1 - 2 / (e^2x + 1), good at both ends
        scores = cap - 2 * cap / (tl.exp2(scores * factor) + 1)
    else:
        scores = scores * factor
    if SLOPES:
        scores += slope[:, None] * away.to(tl.float32)
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher  # a row may have seen nothing yet
    shares = tl.exp2(scores - base[:, None])
    fade = tl.exp2(peak - base)
    weight = weight * fade + tl.sum(shares, 1)
    if UNITED:
        larger = tl.maximum(unit, tl.max(value_scale.to(tl.int32), 0))
        shares = shares * ratio(value_scale.to(tl.int32), larger)[None, :]
        fade = fade * ratio(unit, larger)
        unit = larger
    elif SCALED:
        shares = shares * scale_of(value_scale)[None, :]
    total = tl.dot(shares.to(v.dtype), v, total * fade[:, None], input_precision="ieee")
    return total, weight, higher, unit
