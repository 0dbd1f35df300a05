"""What the paged attention kernels share: the formula, their arguments, and the limits of these, checked.

For a query q of head h at position p of its row, with the keys k_j and values v_j of head h // group,
    s_j = scale · q · k_j            and, with a soft cap, s_j = cap · tanh(scale · q · k_j / cap)
    out = Σ_j softmax(s)_j · v_j     over the positions j that it sees: p - window < j ≤ p, or j ≤ p without a window,
                                     of chunks those with j // chunk = p // chunk; tokens of a picture in which all
                                     see one another up to its end.
With slopes, slopes[h] · (j - p) is added to s_j. With sinks the softmax has one score more, sinks[h], that takes a
share and gives nothing. A query that sees nothing gives zeros.

Keys lie in pools [blocks, kv_heads, block_size, key_dim], values [blocks, kv_heads, block_size, value_dim], of any
strides but the last, which is 1; values may be a part of the keys. What is said of head_dim holds for both. Position
j of row r lies in block `blocks[r, j // block_size]` at slot j % block_size; `lengths[r]` positions are there, the
step's own among them. Entries of the table that hold no position in sight are not read, nor are such slots.
Pools of 8 bits have scales beside them (triton/quantised_kv.py).

The kernels were compiled ahead of time and checked in Triton's interpreter; they were not run on a GPU yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .checked import once_for_each_form
from .triton.quantised_kv import E4M3, Scales, check_scales

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_GROUP = 128  # query heads that share a head of keys: 16 of them are the rows of one product
LARGEST_HEAD = 576
BLOCK_SIZES = range(16, 129, 16)
ALONE = 1  # likewise a block of one token, as where queries see tokens that were chosen
FURTHEST = 1 << 31  # offsets within a block, and sizes, are 32-bit numbers; offsets of blocks, rows and heads are not


@dataclass(frozen=True)
class Scoring:
    """How scores come about, the same for all rows of a layer."""

    scale: float
    window: int | None = None  # a query sees as many positions at most, its own included
    soft_cap: float | None = None
    chunk: int | None = None  # it sees only those of its chunk of so many

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise ValueError(f"scale is {self.scale}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}: a query sees itself at least")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}: a query sees itself at least")
        if self.soft_cap is not None and not 0 < self.soft_cap < math.inf:
            raise ValueError(f"soft_cap is {self.soft_cap}, not a positive number")


class ByHead(NamedTuple):
    """What is added to scores by head of queries, each float32 [heads] or nothing."""

    sinks: Tensor | None = None  # of one score more
    slopes: Tensor | None = None  # of the distance


class Pages(NamedTuple):
    """A layer's pools, and where the rows lie in them."""

    keys: Tensor  # [blocks, kv_heads, block_size, key_dim], of the queries' type or of 8 bits
    values: Tensor  # the same but for its width
    blocks: Tensor  # int32 [rows, blocks of the longest row]
    lengths: Tensor  # int32 [rows]; 0 for a row that is not there
    scales: Scales | None = None  # of keys and values of 8 bits


def bytes_of(pages: Pages) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pools and their scales, those of 8 bits as bytes; without scales, something in their place."""
    if pages.scales is None:
        return pages.keys, pages.values, pages.keys, pages.values
    return pages.keys.view(torch.uint8), pages.values.view(torch.uint8), *pages.scales


def strides(pages: Pages) -> tuple[int, ...]:
    """Of blocks, heads and slots of the pools; of blocks and heads of the scales."""
    return *pages.keys.stride()[:3], *((0, 0) if pages.scales is None else pages.scales.keys.stride()[:2])


def gathered(pages: Pages) -> Pages:
    """The rows' contexts in memory of their own, each as many blocks as the table is wide, one row after the other.

    A model may make other heads of it, of each slot by itself, and attend to these with the same table and lengths.
    """
    keys, values, blocks, lengths, scales = pages
    rows, width = blocks.shape
    number = torch.arange(width, device=blocks.device)
    there = number * keys.shape[2] < lengths[:, None]
    index = torch.where(there, blocks, 0).flatten().long()
    table = torch.arange(rows * width, dtype=torch.int32, device=blocks.device).view(rows, width)
    own = None if scales is None else Scales(scales.keys[index], scales.values[index])
    kinds = [pool if scales is None else pool.view(torch.uint8) for pool in (keys, values)]
    taken = [pool[index].view(pages.keys.dtype) for pool in kinds]
    return Pages(taken[0], taken[1], table, lengths, own)


@once_for_each_form
def check(queries: Tensor, pages: Pages) -> None:
    """Raise ValueError, with what is wrong, if kernels cannot take `queries` [tokens, heads, key_dim] over `pages`."""
    keys, values, blocks, lengths, scales = pages
    _demand(queries.ndim == 3, f"queries must be [tokens, heads, key_dim], not {list(queries.shape)}")
    _demand(keys.ndim == 4, f"keys must be [blocks, kv_heads, block_size, key_dim], not {list(keys.shape)}")
    _demand(values.shape[:3] == keys.shape[:3], f"values {list(values.shape)} do not go with keys {list(keys.shape)}")
    _demand(queries.dtype in DTYPES, f"queries are {queries.dtype}")
    kind = queries.dtype if scales is None else E4M3
    _demand(keys.dtype == values.dtype == kind, f"{queries.dtype} queries, {keys.dtype} and {values.dtype} KV")
    check_scales(keys, values, scales)
    _demand(len({tensor.device for tensor in (queries, *pages[:4])}) == 1, "queries and pages are on different devices")
    heads, head_dim = queries.shape[1:]
    kv_heads, block_size = keys.shape[1:3]
    _demand(keys.shape[3] == head_dim, f"queries have heads of {head_dim}, keys of {keys.shape[3]}")
    for width in (head_dim, values.shape[3]):
        fits = 0 < width <= LARGEST_HEAD and width % 16 == 0
        _demand(fits, f"heads of {width}: not a multiple of 16 to {LARGEST_HEAD}")
    _demand(heads > 0 and heads % kv_heads == 0, f"{heads} heads of queries over {kv_heads} of keys")
    group = heads // kv_heads
    _demand(group <= LARGEST_GROUP, f"{group} heads share one of keys, at most {LARGEST_GROUP} can")
    _demand(block_size in (ALONE, *BLOCK_SIZES), f"blocks of {block_size}: not a multiple of 16 up to 128")
    near = queries.stride(2) == keys.stride(3) == values.stride(3) == 1
    _demand(near, "the numbers of a head must lie side by side")
    for pool in (keys, values):
        _demand(block_size * pool.stride(2) < FURTHEST, f"slots {pool.stride(2)} numbers apart are too far for 32 bits")
    _demand(blocks.dtype == lengths.dtype == torch.int32, f"blocks are {blocks.dtype}, lengths {lengths.dtype}: int32")
    _demand(blocks.ndim == 2 and lengths.shape == blocks.shape[:1], f"lengths are {list(lengths.shape)}")
    _demand(blocks.stride(1) == 1 and lengths.is_contiguous(), "a row's blocks, and lengths, must lie side by side")


@once_for_each_form
def check_starts(starts: Tensor, pages: Pages) -> None:
    """Raise ValueError unless `starts` is int32 [rows + 1] beside `pages`."""
    wanted = (len(pages.lengths) + 1,)
    _demand(starts.dtype == torch.int32 and starts.shape == wanted, f"starts are {starts.dtype} {list(starts.shape)}")
    _demand(starts.is_contiguous() and starts.device == pages.lengths.device, "starts lie apart, or elsewhere")


@once_for_each_form
def check_by_head(given: ByHead, queries: Tensor) -> None:
    """Raise ValueError unless these go with the heads of `queries`."""
    for name, numbers in given._asdict().items():
        fits = numbers is None or (numbers.shape == queries.shape[1:2] and numbers.dtype == torch.float32)
        _demand(fits, f"{name} must be float32, one for each of {queries.shape[1]} heads")
        fits = numbers is None or (numbers.is_contiguous() and numbers.device == queries.device)
        _demand(fits, f"{name} lie apart, or elsewhere")


@once_for_each_form
def check_ends(ends: Tensor | None, queries: Tensor) -> None:
    """Raise ValueError unless `ends` are int64, one for each token."""
    fits = ends is None or (ends.shape == queries.shape[:1] and ends.dtype == torch.int64)
    _demand(fits, f"ends must be int64 [{len(queries)}]")
    fits = ends is None or (ends.is_contiguous() and ends.device == queries.device)
    _demand(fits, "ends lie apart, or elsewhere")


def new_out(queries: Tensor, pages: Pages) -> Tensor:
    """Memory for results."""
    return torch.empty(*queries.shape[:2], pages.values.shape[3], dtype=queries.dtype, device=queries.device)


@once_for_each_form
def check_out(out: Tensor, queries: Tensor, pages: Pages) -> None:
    """Raise ValueError unless results for `queries` can be written to `out`."""
    wanted = (*queries.shape[:2], pages.values.shape[3])
    _demand(out.shape == wanted, f"out {list(out.shape)} is not {list(wanted)}")
    _demand(out.dtype == queries.dtype and out.device == queries.device, f"out is {out.dtype} on {out.device}")
    _demand(out.stride(2) == 1, "the numbers of a head must lie side by side in out")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
