"""Triton: what requests want of logits before a token is drawn, and what makes logprobs of them.

In place, in this order, as cpu/penalties.py, worker/logits/processors.py and grammar_mask.py do it on a CPU:
    x / r where x > 0, x * r elsewhere, for words of prompt or answer         repetition r
    x - f * (times that the word is in the answer)                            frequency f
    x - p if the word is in the answer                                        presence p
    x + b for the words that a bias names
    -inf where the word's bit is 0                                            grammar (bit w % 32 of number w // 32)
`log_sums` gives log Σ exp x, which taken from x_t leaves the logprob of word t.

A row of 152k words takes 0.32 MB: a bit for each word of the prompt, 16 bits for the times that one is in the answer;
of sequences that may be longer than these count, 32, and 0.63 MB.
Grids follow from shapes alone, and who asks for what is read on the device: a graph captures them for any requests.
Rows that ask for nothing are left after a few loads. Compiled ahead of time and checked in the interpreter; not run on
a GPU yet. Knows tensors only: no requests.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # words that a program adjusts
LANES = 4096  # words that a program reads at a time
COUNTED = 256  # rows of one program
MOST_BIASES = 2048  # of a row: a request's, and as many again that change from token to token
COUNT_TYPES = (torch.int16, torch.int32)


class RowPenalties(NamedTuple):
    """Of each state row; repetition 1, frequency 0 and presence 0 change nothing, and counts are not looked at."""

    repetition: Tensor  # float32 [states]
    frequency: Tensor  # float32 [states]
    presence: Tensor  # float32 [states]
    prompted: Tensor  # int32 [states, words / 32, rounded up]: bit w % 32 of number w // 32: w is in the prompt
    counts: Tensor  # of `count_type` [states, words]: how often it is in the answer, or among the last tokens


class Bias(NamedTuple):
    """Of each state row; a word stands once in its row, and -1 where there are no more."""

    words: Tensor  # int32 [states, most]
    values: Tensor  # float32 [states, most]


class Mask(NamedTuple):
    """The words that grammars allow."""

    bits: Tensor  # int32 [masks, words / 32, rounded up]
    which: Tensor  # int64 [n]: the mask of each row of logits, -1: none


def count_type(tokens: int) -> torch.dtype:
    """In which a word may be counted as often as a sequence has tokens."""
    return next(kind for kind in COUNT_TYPES if tokens <= torch.iinfo(kind).max)


@triton.jit(do_not_specialize_on_alignment=["rows", "which"])  # they may be parts of one vector
def adjust_kernel(
    logits, logits_row, rows, repetition, frequency, presence, prompted, prompted_row, counts, counts_row,
    bits, bits_row, which, WORDS: tl.constexpr, BLOCK: tl.constexpr, PENALIZED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Penalties and mask, for BLOCK words of one row."""
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(rows + row)
    if state < 0:
        return
    penalized = state < 0
    mask = state * 0 - 1
    if PENALIZED:
        repeated, often, once = tl.load(repetition + state), tl.load(frequency + state), tl.load(presence + state)
        penalized = (repeated != 1) | (often != 0) | (once != 0)
    if MASKED:
        mask = tl.load(which + row)
    if (not penalized) & (mask < 0):
        return
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < WORDS
    place = logits + row * logits_row + at
    x = tl.load(place, mask=inside, other=0.0)
    if PENALIZED:
        looked_at = at < tl.where(penalized, WORDS, 0)
        count = tl.load(counts + state * counts_row + at, mask=looked_at, other=0)
        known = (tl.load(prompted + state * prompted_row + at // 32, mask=looked_at, other=0) >> (at % 32)) & 1 == 1
        seen = count > 0
        x = tl.where(known | seen, x * tl.where(x > 0, 1.0 / repeated, repeated), x)
        x -= often * count.to(tl.float32) + tl.where(seen, once, 0.0)
    if MASKED:
        allowed = tl.load(bits + mask * bits_row + at // 32, mask=inside & (mask >= 0), other=-1)
        x = tl.where((allowed >> (at % 32)) & 1 == 1, x, float("-inf"))
    tl.store(place, x, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["rows"])
def bias_kernel(
    logits, logits_row, rows, words, values, words_row, values_row, WORDS: tl.constexpr,
    MOST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The biases of one row; -inf stays, so that the mask may come before."""
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(rows + row)
    if state < 0:
        return
    entry = tl.arange(0, BLOCK)
    word = tl.load(words + state * words_row + entry, mask=entry < MOST, other=-1)
    inside = (word >= 0) & (word < WORDS)
    place = logits + row * logits_row + word
    value = tl.load(values + state * values_row + entry, mask=inside, other=0.0)
    tl.store(place, tl.load(place, mask=inside, other=0.0) + value, mask=inside)


@triton.jit(do_not_specialize=["number"], do_not_specialize_on_alignment=["rows", "tokens", "leaving"])
def count_kernel(rows, tokens, leaving, counts, counts_row, number, BLOCK: tl.constexpr):
    """BLOCK rows."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    state = tl.load(rows + index, mask=index < number, other=-1)
    token = tl.load(tokens + index, mask=index < number, other=0).to(tl.int64)
    gone = tl.load(leaving + index, mask=index < number, other=-1)
    changes = (state >= 0) & (token != gone)
    place = counts + state * counts_row + token
    count = tl.load(place, mask=changes, other=0).to(tl.int32) + 1
    tl.store(place, count.to(counts.dtype.element_ty), mask=changes)
    changes = changes & (gone >= 0)
    place = counts + state * counts_row + gone
    count = tl.load(place, mask=changes, other=1).to(tl.int32) - 1
    tl.store(place, tl.maximum(count, 0).to(counts.dtype.element_ty), mask=changes)


@triton.jit
def log_sums_kernel(logits, logits_row, out, WORDS: tl.constexpr, LANES: tl.constexpr):
    """One row, with a running maximum and sum of each lane."""
    row = tl.program_id(0).to(tl.int64)
    source = logits + row * logits_row
    peak = tl.full([LANES], float("-inf"), tl.float32)
    weight = tl.zeros([LANES], tl.float32)
    for start in range(0, WORDS, LANES):
        at = start + tl.arange(0, LANES)
        x = tl.load(source + at, mask=at < WORDS, other=float("-inf"))
        higher = tl.maximum(peak, x)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = weight * tl.exp(peak - base) + tl.exp(x - base)
        peak = higher
    best = tl.max(peak, 0)
    base = tl.where(best == float("-inf"), 0.0, best)
    tl.store(out + row, base + tl.log(tl.sum(weight * tl.exp(peak - base), 0)))


def adjust(
    logits: Tensor,
    rows: Tensor,
    penalties: RowPenalties | None = None,
    bias: Bias | None = None,
    mask: Mask | None = None,
) -> None:
    """Change `logits` [n, words] float32 in place; `rows` [n] int64 names the state row of each, -1: leave it alone."""
    _check(logits, {"rows": rows} | ({} if mask is None else {"which": mask.which}))
    words = logits.shape[1]
    if penalties is not None:
        _check_penalties(penalties, words)
    if mask is not None:
        bits = mask.bits
        if bits.dtype != torch.int32 or bits.dim() != 2 or bits.shape[1] != -(-words // 32) or bits.stride(1) != 1:
            raise ValueError(f"bits {bits.dtype}{list(bits.shape)} do not fit {words} words")
    if bias is not None:
        _check_bias(bias)
    if not len(rows):
        return
    if penalties is not None or mask is not None:
        unused = rows
        numbers = penalties[:3] if penalties is not None else (logits, logits, logits)
        prompted, counts = penalties[3:] if penalties is not None else (unused, unused)
        bits, which = mask if mask is not None else (unused, unused)
        adjust_kernel[(len(rows), triton.cdiv(words, BLOCK))](
            logits, logits.stride(0), rows, *numbers, prompted, prompted.stride(0), counts, counts.stride(0),
            bits, bits.stride(0), which,
            WORDS=words, BLOCK=BLOCK, PENALIZED=penalties is not None, MASKED=mask is not None,
        )  # fmt: skip
    if bias is not None and bias.words.shape[1]:
        most = bias.words.shape[1]
        bias_kernel[(len(rows),)](
            logits, logits.stride(0), rows, *bias, bias.words.stride(0), bias.values.stride(0),
            WORDS=words, MOST=most, BLOCK=triton.next_power_of_2(most), num_warps=2,
        )  # fmt: skip


def count_tokens(rows: Tensor, tokens: Tensor, leaving: Tensor, counts: Tensor) -> None:
    """counts[rows[i], tokens[i]] += 1 for the rows that are not below 0, none of which may come twice, and
    counts[rows[i], leaving[i]] -= 1 where that is not below 0.

    rows and leaving int64 [n], tokens int32 or int64 [n], counts as in RowPenalties.
    """
    for name, values, kinds in (
        ("rows", rows, (torch.int64,)),
        ("tokens", tokens, (torch.int32, torch.int64)),
        ("leaving", leaving, (torch.int64,)),
    ):
        if values.shape != rows.shape or values.dtype not in kinds:
            raise ValueError(f"{name} {values.dtype}{list(values.shape)} do not fit {list(rows.shape)} rows")
    if counts.dtype not in COUNT_TYPES or counts.dim() != 2 or counts.stride(1) != 1:
        raise ValueError(f"counts {counts.dtype}{list(counts.shape)} must be int16 or int32 [states, words]")
    if len(rows):
        grid = (triton.cdiv(len(rows), COUNTED),)
        count_kernel[grid](rows, tokens, leaving, counts, counts.stride(0), len(rows), BLOCK=COUNTED, num_warps=1)


def log_sums(logits: Tensor, out: Tensor | None = None) -> Tensor:
    """float32 [n]: log Σ exp x of each row of `logits` [n, words] float32; a row's bits do not depend on the others."""
    _check(logits, {})
    out = torch.empty(len(logits), dtype=torch.float32, device=logits.device) if out is None else out
    if out.shape != logits.shape[:1] or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(f"out {out.dtype}{list(out.shape)} must be float32 [{len(logits)}]")
    count, words = logits.shape
    if count:
        stride = logits.stride(0) if count > 1 else words  # that of a single row may be any
        log_sums_kernel[(count,)](logits, stride, out, WORDS=words, LANES=LANES, num_warps=16)
    return out


def _check(logits: Tensor, by_row: dict[str, Tensor]) -> None:
    if logits.dim() != 2 or logits.dtype != torch.float32 or not logits.shape[1] or logits.stride(1) != 1:
        raise ValueError(f"logits {logits.dtype}{list(logits.shape)} must be float32 [rows, words], words side by side")
    for name, tensor in by_row.items():
        if tensor.shape != logits.shape[:1] or tensor.dtype != torch.int64 or not tensor.is_contiguous():
            raise ValueError(f"{name} {tensor.dtype}{list(tensor.shape)} does not fit {logits.shape[0]} rows")


def _check_penalties(penalties: RowPenalties, words: int) -> None:
    states = penalties.repetition.shape[:1]
    for name, values in penalties._asdict().items():
        kinds = {"prompted": (torch.int32,), "counts": COUNT_TYPES}.get(name, (torch.float32,))
        shape = {"prompted": (*states, -(-words // 32)), "counts": (*states, words)}.get(name, states)
        if values.dtype not in kinds or values.shape != shape or values.stride(-1) != 1:
            wanted = " or ".join(map(str, kinds))
            raise ValueError(f"{name} {values.dtype}{list(values.shape)} must be {wanted}{list(shape)}")


def _check_bias(bias: Bias) -> None:
    for name, values, kind in (("words", bias.words, torch.int32), ("values", bias.values, torch.float32)):
        fits = values.dim() == 2 and values.shape == bias.words.shape and values.shape[1] <= MOST_BIASES
        if values.dtype != kind or not fits or (values.shape[1] and values.stride(1) != 1):
            raise ValueError(
                f"{name} {values.dtype}{list(values.shape)} must be {kind} [states, at most {MOST_BIASES}]"
            )
