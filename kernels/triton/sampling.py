"""Triton: drawing one token for each row of logits, without sorting the vocabulary; and the logprob of a token.

Filters, their order and their meaning are those of cpu/sampling.py, with w = exp((x - max x) / temperature), and so are
the random numbers, bit for bit. Words are cumulated in the same order, too, so that a GPU draws what a CPU draws, but
where a number falls within rounding of the border between two words. A weight counts as floor(w · 2^40): sums of 64-bit
integers are exact, whatever order they are made in.

A row's vocabulary is cut into slices of neighbouring words, each the work of a program, so that one row alone fills the
device. Four kernels, one after the other:
1. peaks    the largest logit of each slice and the first word that has it, and the largest of each of its lanes; where
            top-nσ wants the deviation, the sums for it;
2. edges    one program a row: the smallest logit that top-nσ keeps; and, where a filter wants candidates, the weight
            that about the fourth part of all lanes' maxima have;
3. gather   the weight of each slice, and its words from that weight on, in their order: some 1,400 candidates of
            150,000 words, among which all that the filters keep nearly always are. Each slice has memory of its own for
            them, so that nobody waits;
4. sample   one program a row: a greedy row's word is known by now; without filters the slice in which the cumulated
            weight passes u(seed, position) of the whole is, and the word is sought there; else among the candidates.
The smallest weights that top-k and top-p keep, and the word that is drawn in descending order, are found by bisection
on the bits of floats, which are ordered as the floats: 30 turns over the candidates, or, where these do not hold all
that is kept (flat distributions, a top-k of thousands), over the whole row (sampler/weight_search.py). So is the
largest distance that typical-p keeps, behind the others (sampler/typical.py). XTC and a dynamic temperature then take a
look or three more at what is left (sampler/reshaping.py); rows without them do not.
Grids follow from shapes alone, parameters are read on the device: a graph captures them for any filters.
Compiled ahead of time and checked in the interpreter; not run on a GPU yet: sizes are computed, not measured.

Knows tensors only: no requests. A NaN among logits weighs nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .sampler.draw import (
    collect,
    draw_filtered,
    draw_freely,
    drawn_at_all,
    exclusion,
    filtered_at,
    floor_of,
    goal_of,
    holds_typical,
    lists_words,
    reshapes,
    uniform_number,
)
from .sampler.edges import edges_kernel
from .sampler.typical import moments_of
from .sampler.weight_search import fetch, weigh
from .sampler.workspace import DEFAULT, check_workspace
from .sampler.workspace import Tiling as Tiling  # for those who call `sample`
from .sampler.workspace import Workspace as Workspace

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_WORDS = 1 << 20  # sums of their weights fit into 63 bits


class RowParameters(NamedTuple):
    """One value for each state row. top_p and typical_p 1, and 0 of the others: no filter; temperature 0 is greedy.
    Without xtc_probability and dynatemp_range those behind them say nothing."""

    temperature: Tensor  # float32
    top_k: Tensor  # int64
    top_p: Tensor  # float64
    min_p: Tensor  # float32, at most 1
    top_n_sigma: Tensor  # float32
    typical_p: Tensor  # float64
    xtc_probability: Tensor  # float32
    xtc_threshold: Tensor  # float32
    dynatemp_range: Tensor  # float32
    dynatemp_exponent: Tensor  # float32
    seed: Tensor  # int64 with the bits of a uint64
    position: Tensor  # int64, where in its sequence the drawn token will stand


PARAMETER_DTYPES = (
    *(torch.float32, torch.int64, torch.float64, torch.float32, torch.float32, torch.float64),
    *(torch.float32, torch.float32, torch.float32, torch.float32),
    *(torch.int64, torch.int64),
)


@triton.jit(do_not_specialize_on_alignment=["rows"])
def peaks_kernel(
    logits, logits_row, rows, temperatures, top_n_sigma, peaks, bests, firsts, numbers, sums, squares,
    WORDS: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """One slice of one row."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    state = tl.load(rows + row)
    if state < 0:
        return
    at = part * WIDTH + tl.arange(0, WIDTH)
    values = fetch(logits + row * logits_row, at, WORDS, float("-inf"))
    best = tl.max(values, 0)
    slot = row * SLICES + part
    tl.store(bests + slot, best)
    tl.store(firsts + slot, tl.min(tl.where(values == best, at, WORDS - 1), 0))
    if tl.load(temperatures + state) != 0:
        lanes = tl.max(tl.reshape(values, [LANES, WIDTH // LANES], can_reorder=True), 1)
        tl.store(peaks + slot * LANES + tl.arange(0, LANES), lanes)
        if tl.load(top_n_sigma + state) > 0:
            there = (values > float("-inf")) & (values < float("inf"))
            exact = tl.where(there, values, 0.0).to(tl.float64)
            tl.store(numbers + slot, tl.sum(there.to(tl.int32), 0))
            tl.store(sums + slot, tl.sum(exact, 0))
            tl.store(squares + slot, tl.sum(exact * exact, 0))


@triton.jit(do_not_specialize_on_alignment=["rows"])
def gather_kernel(
    logits, logits_row, rows, temperatures, top_k, top_p, min_p, typical_p, xtc_probability, dynatemp_range,
    bests, totals, counts, found, masses, moments, leasts, edges, slice_logits, slice_words,
    WORDS: tl.constexpr, WIDTH: tl.constexpr, SLICES: tl.constexpr, PADDED: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    """One slice of one row: what its words weigh, and its candidates."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    state = tl.load(rows + row)
    if state < 0:
        return
    temperature = tl.load(temperatures + state)
    parts = tl.arange(0, PADDED)
    best = tl.max(tl.load(bests + row * SLICES + parts, mask=parts < SLICES, other=float("-inf")), 0)
    if not drawn_at_all(temperature, best):
        return
    filtered = lists_words(tl.load(top_k + state), tl.load(top_p + state))
    typical = tl.load(typical_p + state) < 1
    span = tl.load(dynatemp_range + state)
    temperature = filtered_at(temperature, span)
    floor = floor_of(tl.load(min_p + state))
    at = part * WIDTH + tl.arange(0, WIDTH)
    values = fetch(logits + row * logits_row, at, WORDS, tl.load(leasts + row))
    bits, weights = weigh(values, best, temperature)
    slot = row * SLICES + part
    tl.store(totals + slot, tl.sum(tl.where(bits >= tl.where(filtered, 0, floor), weights, 0), 0))
    tl.store(counts + slot, tl.sum((bits >= tl.maximum(floor, 1)).to(tl.int32), 0))
    if typical & (not filtered):
        moment = moments_of(values, tl.where(bits >= floor, weights, 0), best, temperature)
        tl.store(moments + slot, tl.sum(moment, 0))
    if filtered | typical | reshapes(tl.load(xtc_probability + state), span):
        hit = bits >= tl.load(edges + row)
        tl.store(found + slot, tl.sum(hit.to(tl.int32), 0))
        tl.store(masses + slot, tl.sum(tl.where(hit, weights, 0), 0))
        place = tl.cumsum(hit.to(tl.int32), 0) - 1
        inside = hit & (place < SEGMENT)
        tl.store(slice_logits + slot * SEGMENT + place, values, mask=inside)
        tl.store(slice_words + slot * SEGMENT + place, at, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["rows", "tokens"])
def sample_kernel(
    logits, logits_row, rows, temperatures, top_k, top_p, min_p, top_n_sigma, typical_p,
    xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent, seed, position,
    bests, firsts, totals, counts, found, masses, moments, leasts, edges, slice_logits, slice_words,
    found_logits, found_words, tokens, kept,
    WORDS: tl.constexpr, WIDTH: tl.constexpr, SLICES: tl.constexpr, PADDED: tl.constexpr, SEGMENT: tl.constexpr,
    CANDIDATES: tl.constexpr, REPORT: tl.constexpr,
):  # fmt: skip
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(rows + row)
    if state < 0:
        tl.store(tokens + row, 0)
        if REPORT:
            tl.store(kept + row, 0)
        return
    source = logits + row * logits_row
    parts = tl.arange(0, PADDED)
    slots, there = row * SLICES + parts, parts < SLICES
    peak = tl.load(bests + slots, mask=there, other=float("-inf"))
    best = tl.max(peak, 0)
    first = tl.load(firsts + slots, mask=there, other=WORDS - 1)
    word = tl.min(tl.where(peak == best, first, WORDS - 1), 0)
    many = row * 0 + 1
    middle = tl.load(temperatures + state)
    if drawn_at_all(middle, best):
        span, often = tl.load(dynatemp_range + state), tl.load(xtc_probability + state)
        reshaping, temperature = reshapes(often, span), filtered_at(middle, span)
        most, share = tl.load(top_k + state), tl.load(top_p + state)
        floor, least = floor_of(tl.load(min_p + state)), tl.load(leasts + row)
        u = uniform_number(tl.load(seed + state), tl.load(position + state))
        weights = tl.load(totals + slots, mask=there, other=0)
        typical = tl.load(typical_p + state)
        filtered = lists_words(most, share)
        if filtered | (typical < 1) | reshaping:
            total = tl.sum(weights, 0)
            numbers = tl.load(found + slots, mask=there, other=0)
            number, mass = tl.sum(numbers, 0), tl.sum(tl.load(masses + slots, mask=there, other=0), 0)
            edge = tl.load(edges + row)
            limited = (most > 0) & (most < WORDS)
            heavy = (mass >= goal_of(total, share)) & ((share < 1) | (span <= 0))  # a dynamic temperature counts words
            enough = tl.where(limited, number >= most, heavy | (floor >= edge)) | (edge == 1)
            moment = total.to(tl.float64) * 0
            if (typical < 1) & (not filtered):
                moment = tl.sum(tl.load(moments + slots, mask=there, other=0.0), 0)
                enough = enough | holds_typical(edge, mass, total, moment, typical)
            holds = enough & (number <= CANDIDATES) & (tl.max(numbers, 0) <= SEGMENT)
            place, count = source, number * 0 + WORDS
            own_words = found_words + row * CANDIDATES
            if holds:
                place, count = found_logits + row * CANDIDATES, number
                memory = row * SLICES * SEGMENT
                collect(
                    slice_logits + memory, slice_words + memory, found + row * SLICES, place, own_words,
                    SLICES, SEGMENT, CANDIDATES,
                )  # fmt: skip
                tl.debug_barrier()  # candidates are read by other threads than wrote them
            excluded = exclusion(
                tl.load(seed + state), tl.load(position + state), often, tl.load(xtc_threshold + state)
            )  # fmt: skip
            word, many = draw_filtered(
                place, count, least, best, temperature, total, moment, most, share, typical, floor, u,
                reshaping, excluded, middle, span, tl.load(dynatemp_exponent + state),
                WORDS, WIDTH, CANDIDATES,
            )  # fmt: skip
            if holds:
                word = tl.load(own_words + word)
        else:
            word = draw_freely(source, least, best, temperature, parts, weights, floor, u, WORDS, WIDTH)
            many = tl.sum(tl.load(counts + slots, mask=there, other=0), 0).to(tl.int64)
    tl.store(tokens + row, word.to(tokens.dtype.element_ty))
    if REPORT:
        tl.store(kept + row, many.to(tl.int32))


def sample(
    logits: Tensor,
    rows: Tensor,
    parameters: RowParameters,
    workspace: Workspace,
    out: Tensor,
    *,
    kept: Tensor | None = None,
    tiling: Tiling = DEFAULT,
) -> Tensor:
    """A token for each row of logits, in `out`.

    logits      [n, words] float32, float16 or bfloat16, rows may lie apart; they are not changed
    rows        [n] int64: the state row whose parameters a row of logits has; -1: of none, its token is 0
    workspace   made for as many rows or more, these words and this tiling
    out         [n] int32 or int64
    kept        [n] int32, if given: how many words of a weight above 0 the filters left; 1 for a greedy row
    """
    _check(logits, rows, parameters)
    words = logits.shape[1]
    tiling = tiling.of(words)
    slices = triton.cdiv(words, tiling.width)
    check_workspace(workspace, rows.shape[0], slices, tiling)
    for name, tensor in (("out", out), ("kept", out if kept is None else kept)):
        if tensor.shape != rows.shape or tensor.dtype not in (torch.int32, torch.int64) or not tensor.is_contiguous():
            raise ValueError(f"{name} {tensor.dtype}{list(tensor.shape)} does not fit {rows.shape[0]} rows")
    if kept is not None and kept.dtype != torch.int32:
        raise ValueError(f"kept must be int32, not {kept.dtype}")
    if not rows.shape[0]:
        return out
    source = logits, logits.stride(0), rows
    peaks, bests, firsts, *parts = workspace[:-4]
    candidates = list(workspace[-4:])
    candidates[::2] = (memory.view(logits.dtype) for memory in candidates[::2])  # as wide at most, and as exact
    shape = {"WORDS": words, "WIDTH": tiling.width, "SLICES": slices}
    wide = {"PADDED": triton.next_power_of_2(slices), "SEGMENT": tiling.segment}
    grid = (rows.shape[0], slices)
    peaks_kernel[grid](
        *source, parameters.temperature, parameters.top_n_sigma, peaks, bests, firsts, *parts[:3],
        **shape, LANES=tiling.lanes, num_warps=tiling.slice_warps,
    )  # fmt: skip
    edges_kernel[grid[:1]](
        rows, *parameters[:3], *parameters[4:7], parameters.dynatemp_range, peaks, bests, *parts[:3], *parts[-2:],
        LANES=tiling.lanes, SLICES=slices, PADDED=wide["PADDED"], num_warps=tiling.row_warps,
    )  # fmt: skip
    gather_kernel[grid](
        *source, *parameters[:4], *parameters[5:7], parameters.dynatemp_range, bests, *parts[3:], *candidates[:2],
        **shape, **wide, num_warps=tiling.gather_warps,
    )  # fmt: skip
    sample_kernel[grid[:1]](
        *source, *parameters, bests, firsts, *parts[3:], *candidates,
        out, out if kept is None else kept,
        **shape, **wide, CANDIDATES=tiling.candidates, REPORT=kept is not None, num_warps=tiling.row_warps,
        maxnreg=192,  # else the compiler spills, to stay below a bound of its own
    )  # fmt: skip
    return out


def _check(logits: Tensor, rows: Tensor, parameters: RowParameters) -> None:
    if logits.dim() != 2 or logits.dtype not in DTYPES or not 0 < logits.shape[1] <= MOST_WORDS:
        raise ValueError(
            f"logits {logits.dtype}{list(logits.shape)} must be floats [rows, words], at most {MOST_WORDS}"
        )
    if logits.stride(1) != 1:
        raise ValueError("logits must have the words of a row side by side")
    if rows.shape != logits.shape[:1] or rows.dtype != torch.int64 or not rows.is_contiguous():
        raise ValueError(f"rows {rows.dtype}{list(rows.shape)} must be int64 [{logits.shape[0]}]")
    for (name, values), kind in zip(parameters._asdict().items(), PARAMETER_DTYPES, strict=True):
        if values.dtype != kind or values.shape != parameters.seed.shape or values.dim() != 1 or values.stride(0) != 1:
            raise ValueError(f"{name} {values.dtype}{list(values.shape)} must be {kind}{list(parameters.seed.shape)}")
