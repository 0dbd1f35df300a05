"""Batches for the tests of paged attention by Triton: on a GPU where there is one, else in Triton's interpreter
(TRITON_INTERPRET must be set before this is imported).

What must not be read is NaN: slots that hold no position in sight, and a block to which unused entries of tables point.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from actorserve.kernels.pages import ByHead, Pages, Scoring
from actorserve.kernels.triton.attention.paged_decode import paged_decode
from actorserve.kernels.triton.attention.paged_prefill import paged_prefill
from actorserve.kernels.triton.attention.tiles import Scratch
from actorserve.kernels.triton.quantised_kv import E4M3, Scales
from tests.kernels.reference.attention import reference_attention
from tests.kernels.reference.quantised_kv import quantise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}  # outputs are around 1
NAN = float("nan")


@dataclass(frozen=True)
class Case:
    dtype: torch.dtype = torch.float32
    head_dim: int = 64
    group: int = 4
    kv_heads: int = 2
    block_size: int = 32
    window: int | None = None
    soft_cap: float | None = None
    splits: int | None = None
    layout: str = "heads outermost in a block"
    scaled: bool = False  # pools of 8 bits
    chunk: int | None = None
    value_dim: int | None = None  # as the keys unless it is said
    sinks: bool = False
    slopes: bool = False

    @property
    def scoring(self) -> Scoring:
        return Scoring(1.7 * self.head_dim**-0.5, self.window, self.soft_cap, self.chunk)

    def by_head(self) -> ByHead:
        """Random ones; some sinks are far above all scores."""
        heads = self.kv_heads * self.group
        sinks, slopes = 6 * torch.randn(heads, device=DEVICE), 0.3 * torch.randn(heads, device=DEVICE)
        return ByHead(sinks if self.sinks else None, slopes if self.slopes else None)


VALUES: dict[str, Sequence[Any]] = {
    "dtype": (torch.float32, torch.float16, torch.bfloat16),
    "head_dim": (64, 80, 96, 128, 256),
    "group": (1, 2, 3, 5, 7, 8, 13, 14, 16),
    "kv_heads": (1, 2),
    "block_size": (16, 32, 48, 64, 128),
    "window": (None, 1, 5, 33),
    "soft_cap": (None, 1.5),
    "splits": (None, 2, 3),
    "layout": ("heads outermost in a block", "heads outermost", "slots outermost in a block"),
    "scaled": (False, True),
}
FEATURES: dict[str, Sequence[Any]] = {
    "dtype": (torch.float32, torch.bfloat16),
    "head_dim": (64, 80, 192),
    "value_dim": (None, 48, 128),
    "group": (2, 8, 20),
    "kv_heads": (1, 2),
    "block_size": (16, 48),
    "window": (None, 33),
    "chunk": (None, 24, 32, 64),
    "soft_cap": (None, 1.5),
    "splits": (None, 2),
    "scaled": (False, True),
    "sinks": (False, True),
    "slopes": (False, True),
}
# The others take the same paths: whole tiles or filled ones, of one block or of several.
QUICK = VALUES | {"head_dim": (64, 80, 256), "group": (1, 3, 8, 14), "block_size": (16, 48, 128)}


def pairwise(values: dict[str, Sequence[Any]]) -> list[Case]:
    """Cases in which each two values of different fields meet at least once."""
    names = list(values)
    wanted = {
        ((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in values[a] for y in values[b]
    }  # fmt: skip
    draw, cases = random.Random(0), []
    while wanted:
        seed = dict(min(wanted, key=str))
        tries = [{name: draw.choice(values[name]) for name in names} | seed for _ in range(60)]
        best = max(tries, key=lambda case: len(wanted & set(itertools.combinations(case.items(), 2))))
        wanted -= set(itertools.combinations(best.items(), 2))
        cases.append(Case(**best))
    return cases


def named(case: Case) -> str:
    return "-".join(str(getattr(case, field.name)).replace("torch.", "").replace(" ", "_") for field in fields(case))


def pools(case: Case, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of NaN (as bytes, 0x7F), [blocks, kv_heads, block_size, width], in memory as layouts say."""
    sizes = {"b": blocks, "h": case.kv_heads, "s": case.block_size, "d": case.head_dim}
    order = {"heads outermost in a block": "bhsd", "heads outermost": "hbsd", "slots outermost in a block": "bshd"}
    axes = order[case.layout]
    shape = [2, *(sizes[axis] for axis in axes)]
    nothing, dtype = (0x7F, torch.uint8) if case.scaled else (NAN, case.dtype)
    both = torch.full(shape, nothing, dtype=dtype, device=DEVICE)
    if case.value_dim is not None:  # in memory of their own
        wide = torch.full([*shape[:-1], case.value_dim], nothing, dtype=dtype, device=DEVICE)
        order_of = [1 + axes.index(axis) for axis in "bhsd"]
        return both.permute(0, *order_of)[0], wide.permute(0, *order_of)[1]
    keys, values = both.permute(0, *(1 + axes.index(axis) for axis in "bhsd"))
    return keys, values


def filled(case: Case, lengths: Sequence[int], counts: Sequence[int], extra: int = 2) -> Pages:
    """Rows with random keys at all positions that their last `counts` tokens see, in scattered blocks; 0 is bad."""
    needed = [-(-length // case.block_size) for length in lengths]
    both = pools(case, 1 + 2 * sum(needed))
    scales = Scales(*torch.full((2, *both[0].shape[:3]), 0xFF, dtype=torch.uint8, device=DEVICE))  # infinite
    order = 1 + torch.randperm(2 * sum(needed))
    table = torch.zeros(len(lengths), max(needed) + extra, dtype=torch.int32)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        first = max(0, length - count + 1 - case.window) if case.window else 0
        first_block = first // case.block_size
        own_blocks = order[sum(needed[:row]) :]
        table[row, first_block : needed[row]] = own_blocks[first_block : needed[row]].int()
        for position in range(first, length):
            block = table[row, position // case.block_size]
            at = block, slice(None), position % case.block_size
            for pool, own in zip(both, scales, strict=True):
                numbers = torch.randn(case.kv_heads, pool.shape[3])
                if case.scaled:
                    codes, own[at] = (part.to(DEVICE) for part in quantise(numbers))
                    pool[at] = codes.view(torch.uint8)
                else:
                    pool[at] = numbers.to(pool)
    keys, values = (pool.view(E4M3) for pool in both) if case.scaled else both
    where = table.to(DEVICE), torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    return Pages(keys, values, *where, scales if case.scaled else None)


def random_queries(case: Case, tokens: int) -> torch.Tensor:
    """A part of a wider matrix, as the model hands over."""
    wide = torch.randn(tokens, case.kv_heads * (case.group + 2), case.head_dim).to(case.dtype).to(DEVICE)
    return wide[:, : case.kv_heads * case.group]


def clean(pages: Pages) -> Pages:
    """For the reference, which multiplies with what it does not see."""
    if pages.scales is not None:
        scales = Scales(*(part.where(part < 0xFF, 0) for part in pages.scales))
        return pages._replace(keys=_without_nan(pages.keys), values=_without_nan(pages.values), scales=scales)
    return pages._replace(keys=pages.keys.nan_to_num(0), values=pages.values.nan_to_num(0))


def _without_nan(pool: torch.Tensor) -> torch.Tensor:
    codes = pool.view(torch.uint8)
    return codes.where(codes != 0x7F, 0).view(E4M3)


def compare(case: Case, out: torch.Tensor, wanted: torch.Tensor, product: torch.dtype | None = None) -> None:
    """`product`: the type in which weights and values are multiplied, if not the case's."""
    product = product or case.dtype
    torch.testing.assert_close(out.float(), wanted, rtol=TOLERANCE[product], atol=TOLERANCE[product])


def check_decode(case: Case, lengths: Sequence[int]) -> torch.Tensor:
    torch.manual_seed(0)
    pages, q = filled(case, lengths, [1] * len(lengths)), random_queries(case, len(lengths))
    by_head, scratch = case.by_head(), Scratch.make(q, case.splits, case.value_dim) if case.splits else None
    for part in scratch[:2] if scratch else ():
        part.fill_(NAN)
    out = paged_decode(q, pages, case.scoring, scratch, by_head=by_head)
    compare(case, out, reference_attention(q, list(range(len(lengths) + 1)), clean(pages), case.scoring, by_head))
    return out


def check_prefill(
    case: Case, lengths: Sequence[int], counts: Sequence[int], tail: int = 0, ends: torch.Tensor | None = None
) -> torch.Tensor:
    torch.manual_seed(0)
    starts = list(itertools.accumulate(counts, initial=0))
    pages, q = filled(case, lengths, counts), random_queries(case, starts[-1] + tail)
    by_head, scratch = case.by_head(), Scratch.make(q, case.splits, case.value_dim) if case.splits else None
    for part in scratch[:2] if scratch else ():
        part.fill_(NAN)
    first_tokens = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    out = paged_prefill(q, first_tokens, pages, case.scoring, None, scratch, by_head, ends=ends)
    product = torch.bfloat16 if case.scaled and case.dtype == torch.float16 else None
    compare(case, out, reference_attention(q, starts, clean(pages), case.scoring, by_head, ends), product)
    return out


def far_apart(tmp_path: Path, dtype: torch.dtype, shape: Sequence[int], axis: int) -> torch.Tensor:
    """A tensor whose items along `axis` are 2^30 numbers apart, in memory that is not there until it is touched.

    It starts at 2^31, where an offset that wrapped would still meet memory of its own.
    """
    step = 1 << 30
    size = 2 * step + shape[axis] * step
    if DEVICE == "cpu":
        memory = torch.from_file(str(tmp_path / "memory"), shared=True, size=size, dtype=dtype)
    else:
        memory = torch.empty(size, dtype=dtype, device=DEVICE)
    strides = list(torch.empty(shape, device="meta").stride())
    strides[axis] = step
    return memory.as_strided(list(shape), strides, 2 * step)
