"""Triton: the likeliest word of each row, where several have a part of the vocabulary each.

    key = order(largest logit) · 2^32 + (2^32 - 1 - its lowest word)

as an int64, order(x) being the int32 that is as much larger as x is. Of several parts' keys the largest is that of the
whole vocabulary: among equals the lowest word wins. So eight bytes a row go from one member to another, not its logits.
Compiled ahead of time and checked in the interpreter; not run on a GPU yet.

Knows tensors only: no members.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .sampler.workspace import DEFAULT, Tiling, Workspace
from .sampling import RowParameters, peaks_kernel

NOBODY = torch.iinfo(torch.int64).min  # the key of a part without words


@triton.jit(do_not_specialize=["first"], do_not_specialize_on_alignment=["rows", "keys"])
def key_kernel(
    rows, bests, firsts, keys, first, WORDS: tl.constexpr, SLICES: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    """One row, whose slices are looked through; of one that is none, word 0's."""
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, PADDED)
    slots, there = row * SLICES + parts, parts < SLICES
    alive = tl.load(rows + row) >= 0
    peak = tl.load(bests + slots, mask=there & alive, other=float("-inf"))
    best = tl.max(peak, 0)
    own = tl.load(firsts + slots, mask=there & alive, other=WORDS - 1)
    word = tl.min(tl.where(peak == best, own, WORDS - 1), 0)
    bits = tl.where(best == 0, 0.0, best).to(tl.int32, bitcast=True)  # -0 is no less than 0
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    behind = tl.where(alive, word.to(tl.int64) + first, 0)
    tl.store(keys + row, (order << 32) + (0xFFFFFFFF - behind))


def greedy_keys(
    logits: Tensor,
    first: int,
    rows: Tensor,
    parameters: RowParameters,
    workspace: Workspace,
    out: Tensor,
    *,
    tiling: Tiling = DEFAULT,
) -> Tensor:
    """A key for each row of a part of the logits, in `out`.

    logits      [n, words] float32, float16 or bfloat16: of the words first, first + 1, …; there may be none
    rows        [n] int64: the state row of each, which is greedy; -1: none, its token is 0
    workspace   as for `sample` of the whole vocabulary, or of more words than these
    out         [n] int64
    """
    count, words = logits.shape
    if out.shape != (count,) or out.dtype != torch.int64 or rows.shape != out.shape or rows.dtype != torch.int64:
        raise ValueError(f"rows and out must be int64 [{count}], not {list(rows.shape)} and {out.dtype}")
    if logits.stride(1) != 1 and words > 1:
        raise ValueError("logits must have the words of a row side by side")
    if not words:
        return out.fill_(NOBODY)
    tiling = tiling.of(words)
    slices = triton.cdiv(words, tiling.width)
    if len(workspace.bests) < count or workspace.bests.shape[1] < slices:
        raise ValueError(f"the workspace does not fit {count} rows of {slices} slices")
    if not count:
        return out
    peaks, bests, firsts, numbers, sums, squares, *_ = workspace
    shape = {"WORDS": words, "SLICES": slices}
    peaks_kernel[count, slices](
        logits, logits.stride(0), rows, parameters.temperature, parameters.top_n_sigma,
        peaks, bests, firsts, numbers, sums, squares,
        **shape, WIDTH=tiling.width, LANES=workspace.peaks.shape[2], num_warps=tiling.slice_warps,
    )  # fmt: skip
    key_kernel[(count,)](
        rows, bests, firsts, out, first, **shape, PADDED=triton.next_power_of_2(slices), num_warps=1
    )  # fmt: skip
    return out


def words_of(keys: Tensor, out: Tensor) -> Tensor:
    """The words of these keys, int32."""
    return torch.bitwise_not(keys.view(torch.int32)[::2], out=out)  # the lower half, on machines that begin with it
