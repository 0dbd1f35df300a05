"""Triton kernel for sampling.py: from where on a row's words count, and from where on they are candidates.

Both follow from what its slices have left, so that one program a row finds them for all programs that look at slices.
Compiled ahead of time and checked in the interpreter; not run on a GPU yet.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .draw import drawn_at_all, filtered_at, lists_words, reshapes
from .weight_search import HEAVIEST, weigh

ROUGHLY = tl.constexpr(12)  # turns after which weights are known to 3 %


@triton.jit
def sigma_edge(numbers, sums, squares, best, sigmas):
    """The smallest logit that is within so many standard deviations of the largest; by parts' sums of finite logits."""
    number = tl.sum(numbers, 0)
    mean = tl.sum(sums, 0) / number
    variance = tl.maximum(tl.sum(squares, 0) / number - mean * mean, 0.0)
    return best - sigmas * tl.sqrt(variance).to(tl.float32)


@triton.jit
def lane_edge(peak, best, temperature, goal):
    """About the bits of the goal-th largest of the lanes' maxima: at least as many are there, and it is at least 1."""
    bits, _ = weigh(peak, best, temperature)
    low = tl.min(bits, 0) * 0
    high = low + HEAVIEST + 1
    for _ in range(ROUGHLY):
        middle = (low + high) // 2
        enough = tl.sum((bits >= middle).to(tl.int32), 0) >= goal
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return tl.maximum(low, 1)


@triton.jit(do_not_specialize_on_alignment=["rows"])
def edges_kernel(
    rows, temperatures, top_k, top_p, top_n_sigma, typical_p, xtc_probability, dynatemp_range,
    peaks, bests, numbers, sums, squares, leasts, edges,
    LANES: tl.constexpr, SLICES: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(rows + row)
    if state < 0:
        return
    temperature = tl.load(temperatures + state)
    parts = tl.arange(0, PADDED)
    slots, there = row * SLICES + parts, parts < SLICES
    best = tl.max(tl.load(bests + slots, mask=there, other=float("-inf")), 0)
    if not drawn_at_all(temperature, best):
        return
    least, sigmas = best * 0 + float("-inf"), tl.load(top_n_sigma + state)
    if sigmas > 0:
        number = tl.load(numbers + slots, mask=there, other=0)
        total = tl.load(sums + slots, mask=there, other=0.0)
        least = sigma_edge(number, total, tl.load(squares + slots, mask=there, other=0.0), best, sigmas)
    tl.store(leasts + row, least)
    span = tl.load(dynatemp_range + state)
    shaped = (tl.load(typical_p + state) < 1) | reshapes(tl.load(xtc_probability + state), span)
    if lists_words(tl.load(top_k + state), tl.load(top_p + state)) | shaped:
        lane = tl.arange(0, PADDED * LANES)
        peak = tl.load(peaks + row * SLICES * LANES + lane, mask=lane < SLICES * LANES, other=float("-inf"))
        peak = tl.where(peak >= least, peak, float("-inf"))
        tl.store(edges + row, lane_edge(peak, best, filtered_at(temperature, span), SLICES * LANES // 4))
