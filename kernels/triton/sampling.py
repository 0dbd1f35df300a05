"""Triton: drawing one token for each row of logits, without sorting the vocabulary; and the logprob of a token.

Filters, their order and their meaning are those of cpu/sampling.py, with w = exp((x - max x) / temperature), and so are
the random numbers, bit for bit. Words are cumulated in the same order, too, so that a GPU draws what a CPU draws, but
where a number falls within rounding of the border between two words. A weight counts as floor(w · 2^40): sums of 64-bit
integers are exact, whatever order they are made in.

One program takes one row, reading the vocabulary three times as a rule (once for a greedy row, twice more for top-nσ):
1. the maximum of each of LANES interleaved parts of the vocabulary, and so the largest of all;
2. the sum of the weights, and, where a filter wants them, all words that weigh no less than the (LANES / 4)-th largest
   of the maxima: somewhat more than LANES / 4 candidates, among which all that the filters keep nearly always are;
3. the word at which the cumulated weight passes u(seed, position) of the whole.
The smallest weights that top-k and top-p keep, and the word that is drawn in descending order, are found by bisection
on the bits of floats, which are ordered as the floats: 30 turns over the candidates, or, where these do not hold all
that is kept (flat distributions, a top-k of thousands), over the whole row (weight_search.py).
The grid follows from the number of rows alone, parameters are read on the device: a graph captures it for any filters.
Compiled ahead of time and checked in the interpreter; not run on a GPU yet: sizes are computed, not measured.

Knows tensors only: no requests. A NaN among logits weighs nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .weight_search import HEAVIEST, filters, gather, held, lane_edge, peaks, pick, search, sigma_edge, weight_of

MOST_WORDS = 1 << 22  # so that sums of weights fit into 63 bits
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)


class RowParameters(NamedTuple):
    """One value for each state row. top_p 1, and 0 of the others, switch a filter off; temperature 0 is greedy."""

    temperature: Tensor  # float32
    top_k: Tensor  # int64
    top_p: Tensor  # float64
    min_p: Tensor  # float32, at most 1
    top_n_sigma: Tensor  # float32
    seed: Tensor  # int64 with the bits of a uint64
    position: Tensor  # int64, where in its sequence the drawn token will stand


DTYPES = torch.float32, torch.int64, torch.float64, torch.float32, torch.float32, torch.int64, torch.int64


class Tiling(NamedTuple):
    """How a program goes through a row; powers of 2."""

    lanes: int = 4096
    candidates: int = 2048
    warps: int = 16


DEFAULT = Tiling()


class Scratch(NamedTuple):
    """The candidates of each row, for batches of up to so many rows."""

    logits: Tensor  # float32 [rows, candidates]
    words: Tensor  # int32 [rows, candidates]

    @classmethod
    def make(cls, rows: int, device: torch.device | str, candidates: int = DEFAULT.candidates) -> Scratch:
        """Made once, before graphs are captured."""
        shape = rows, candidates
        return cls(torch.empty(shape, device=device), torch.empty(shape, dtype=torch.int32, device=device))


@triton.jit
def mix(state):
    """The finaliser of splitmix64."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def uniform_number(seed, position):
    """sampling.uniform of int64 numbers, which hold the bits of what they stand for: float64 in [0, 1)."""
    state = mix(seed.to(tl.uint64, bitcast=True) + GOLDEN)
    state = mix(state + (position.to(tl.uint64, bitcast=True) + 1) * GOLDEN)
    return (state >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)


@triton.jit
def draw(
    source, least, best, heat, peak, top_k, top_p, floor, u, found_logits, found_words,
    WORDS: tl.constexpr, LANES: tl.constexpr, CANDIDATES: tl.constexpr, REPORT: tl.constexpr,
):  # fmt: skip
    """(the word of a row that is not greedy, how many words its filters leave)."""
    filtered = (top_k > 0) | (top_p < 1)
    edge = floor * 0 + HEAVIEST + 1
    if filtered:
        edge = lane_edge(peak, best, heat, LANES)
    lowest = tl.where(filtered, 0, floor)
    total, number, found = gather(
        source, WORDS, least, best, heat, lowest, filtered, edge, found_logits, found_words, LANES, CANDIDATES
    )
    tl.debug_barrier()  # candidates are read by other threads than wrote them
    place, count = source, edge * 0 + WORDS
    cut, ties, kept, many = tl.maximum(floor, 1), total * 0 + WORDS, total, total * 0
    descending = top_k < 0
    holds = top_k < 0
    if filtered:
        limit = tl.ceil(total.to(tl.float64) * tl.minimum(top_p, 1.0)).to(tl.int64)
        limited = (top_k > 0) & (top_k < WORDS)
        enough = tl.where(limited, number >= top_k, (found >= limit) | (floor >= edge))
        holds = (number <= CANDIDATES) & (enough | (edge == 1))
        if holds:
            place, count = found_logits, number
        cut, ties, heavier, above, descending = filters(
            place, count, least, best, heat, WORDS, total, top_k, top_p, floor, LANES, CANDIDATES
        )
        kept = heavier + ties * weight_of(cut)
        many = above + ties
    elif REPORT:
        many, _ = held(source, WORDS, least, best, heat, cut, LANES, CANDIDATES)
    goal = tl.minimum((u * kept.to(tl.float64)).to(tl.int64), kept - 1)
    if descending:
        cut = tl.maximum(search(place, count, least, best, heat, goal + 1, False, LANES, CANDIDATES), cut)
        _, heavier = held(place, count, least, best, heat, cut + 1, LANES, CANDIDATES)
        goal = (goal - heavier) // tl.maximum(weight_of(cut), 1)
        ties = total * 0 + WORDS
    word = pick(place, count, least, best, heat, cut, ties, goal, descending, LANES)
    if holds:
        word = tl.load(found_words + word)
    return word, many


@triton.jit(do_not_specialize_on_alignment=["rows", "tokens"])
def sample_kernel(
    logits, logits_row, rows, temperature, top_k, top_p, min_p, top_n_sigma, seed, position,
    found_logits, found_words, tokens, kept,
    WORDS: tl.constexpr, LANES: tl.constexpr, CANDIDATES: tl.constexpr, REPORT: tl.constexpr,
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
    peak, first = peaks(source, WORDS, LANES)
    best = tl.max(peak, 0)
    word = tl.min(tl.where(peak == best, first, WORDS - 1), 0)
    many = row * 0 + 1
    heat = tl.load(temperature + state)
    if (heat != 0) & (best < float("inf")) & (best > float("-inf")):
        floor = tl.minimum(tl.load(min_p + state).to(tl.int32, bitcast=True), HEAVIEST)
        sigmas = tl.load(top_n_sigma + state)
        least = best * 0 + float("-inf")
        if sigmas > 0:
            least = sigma_edge(source, WORDS, best, sigmas, LANES)
            peak = tl.where(peak >= least, peak, float("-inf"))
        u = uniform_number(tl.load(seed + state), tl.load(position + state))
        word, many = draw(
            source, least, best, heat, peak, tl.load(top_k + state), tl.load(top_p + state), floor, u,
            found_logits + row * CANDIDATES, found_words + row * CANDIDATES, WORDS, LANES, CANDIDATES, REPORT,
        )  # fmt: skip
    tl.store(tokens + row, word.to(tokens.dtype.element_ty))
    if REPORT:
        tl.store(kept + row, many.to(tl.int32))


def sample(
    logits: Tensor,
    rows: Tensor,
    parameters: RowParameters,
    scratch: Scratch,
    out: Tensor,
    *,
    kept: Tensor | None = None,
    tiling: Tiling = DEFAULT,
) -> Tensor:
    """A token for each row of logits, in `out`.

    logits      [n, words] float32, rows may lie apart; they are not changed
    rows        [n] int64: the state row whose parameters a row of logits has; -1: of none, its token is 0
    out         [n] int32 or int64
    kept        [n] int32, if given: how many words of a weight above 0 the filters left; 1 for a greedy row
    """
    _check(logits, rows, parameters, scratch, tiling)
    for name, tensor in (("out", out), ("kept", out if kept is None else kept)):
        if tensor.shape != rows.shape or tensor.dtype not in (torch.int32, torch.int64) or not tensor.is_contiguous():
            raise ValueError(f"{name} {tensor.dtype}{list(tensor.shape)} does not fit {rows.shape[0]} rows")
    if kept is not None and kept.dtype != torch.int32:
        raise ValueError(f"kept must be int32, not {kept.dtype}")
    if rows.shape[0]:
        sample_kernel[(rows.shape[0],)](
            logits, logits.stride(0), rows, *parameters, *scratch, out, out if kept is None else kept,
            WORDS=logits.shape[1], LANES=tiling.lanes, CANDIDATES=tiling.candidates, REPORT=kept is not None,
            num_warps=tiling.warps,
        )  # fmt: skip
    return out


def _check(logits: Tensor, rows: Tensor, parameters: RowParameters, scratch: Scratch, tiling: Tiling) -> None:
    if logits.dim() != 2 or logits.dtype != torch.float32 or not 0 < logits.shape[1] <= MOST_WORDS:
        raise ValueError(
            f"logits {logits.dtype}{list(logits.shape)} must be float32 [rows, words], at most {MOST_WORDS}"
        )
    if logits.stride(1) != 1:
        raise ValueError("logits must have the words of a row side by side")
    if rows.shape != logits.shape[:1] or rows.dtype != torch.int64 or not rows.is_contiguous():
        raise ValueError(f"rows {rows.dtype}{list(rows.shape)} must be int64 [{logits.shape[0]}]")
    for (name, values), kind in zip(parameters._asdict().items(), DTYPES, strict=True):
        if values.dtype != kind or values.shape != parameters.seed.shape or values.dim() != 1 or values.stride(0) != 1:
            raise ValueError(f"{name} {values.dtype}{list(values.shape)} must be {kind}{list(parameters.seed.shape)}")
    for name, memory in scratch._asdict().items():
        wide = memory.dim() == 2 and memory.shape[0] >= rows.shape[0] and memory.shape[1] == tiling.candidates
        if not wide or not memory.is_contiguous():
            raise ValueError(f"scratch {name} {list(memory.shape)} is not enough for {rows.shape[0]} rows")
