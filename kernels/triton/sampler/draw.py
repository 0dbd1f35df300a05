"""Triton functions for sampling.py: random numbers, and the word at which a cumulated weight passes one.

Each is inlined into a kernel. Compiled ahead of time and checked in the interpreter; not run on a GPU yet.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .reshaping import reshaped
from .typical import log_of, moment_left, typical_reach
from .weight_search import HEAVIEST, fetch, filters, pick, search, weigh, weight_of

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
OF_XTC = tl.constexpr(0xD1B54A32D192ED03)  # sampling.OF_XTC
NO_SHARE = tl.constexpr(2.0)  # that no word has


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
def exclusion(seed, position, xtc_probability, xtc_threshold):
    """The share of the weight that a word has which XTC looks at; where it leaves nothing out, none has it."""
    number = uniform_number(seed.to(tl.uint64, bitcast=True) ^ OF_XTC, position)
    return tl.where(number < xtc_probability, xtc_threshold, NO_SHARE)


@triton.jit
def drawn_at_all(temperature, best):
    """Whether a row is neither greedy nor nonsense, which gets the first of its largest words."""
    return (temperature != 0) & (best < float("inf")) & (best > float("-inf"))


@triton.jit
def floor_of(min_p):
    """The bits of the least weight that min-p keeps."""
    return tl.minimum(min_p.to(tl.int32, bitcast=True), HEAVIEST)


@triton.jit
def lists_words(top_k, top_p):
    """Whether a filter wants the likeliest words of a row."""
    return (top_k > 0) | (top_p < 1)


@triton.jit
def reshapes(xtc_probability, dynatemp_range):
    """Whether a row draws from other weights than the filters look at."""
    return (xtc_probability > 0) | (dynatemp_range > 0)


@triton.jit
def filtered_at(temperature, dynatemp_range):
    """The temperature that the filters see: 1 where a dynamic one follows."""
    return tl.where(dynatemp_range > 0, 1.0, temperature)


@triton.jit
def goal_of(total, share):
    """The least weight that is this share of `total`."""
    return tl.ceil(total.to(tl.float64) * tl.minimum(share, 1.0)).to(tl.int64)


@triton.jit
def holds_typical(edge, mass, total, moment, typical_p):
    """Whether all that typical-p alone keeps is among the words from `edge` upwards: none of them is farther from the
    mean than `edge`, and their weight, `mass`, is enough."""
    return (2 * moment / total >= log_of(edge)) & (mass >= goal_of(total, typical_p))


@triton.jit
def collect(
    slice_logits, slice_words, numbers, found_logits, found_words,
    SLICES: tl.constexpr, SEGMENT: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """The candidates of all slices of a row, one after the other."""
    place = tl.arange(0, CANDIDATES)
    part, begin = tl.zeros([CANDIDATES], tl.int32), tl.zeros([CANDIDATES], tl.int32)
    end = 0
    for index in range(SLICES):
        end += tl.load(numbers + index)
        behind = end <= place
        part += behind.to(tl.int32)
        begin = tl.where(behind, end, begin)
    source = part * SEGMENT + place - begin
    tl.store(found_logits + place, tl.load(slice_logits + source, mask=place < end, other=0.0), mask=place < end)
    tl.store(found_words + place, tl.load(slice_words + source, mask=place < end, other=0), mask=place < end)


@triton.jit
def draw_freely(source, least, best, temperature, parts, totals, floor, u, WORDS: tl.constexpr, WIDTH: tl.constexpr):
    """The word at which the weight of those from `floor` upwards, cumulated, passes `u` of the whole."""
    total = tl.sum(totals, 0)
    goal = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
    before = tl.cumsum(totals, 0) - totals
    inside = (before <= goal) & (goal < before + totals)
    goal -= tl.sum(tl.where(inside, before, 0), 0)
    at = tl.sum(tl.where(inside, parts, 0), 0) * WIDTH + tl.arange(0, WIDTH)
    bits, weights = weigh(fetch(source, at, WORDS, least), best, temperature)
    cumulated = tl.cumsum(tl.where(bits >= floor, weights, 0), 0)
    return tl.min(tl.where(cumulated > goal, at, WORDS - 1), 0)


@triton.jit
def draw_filtered(
    place, count, least, best, temperature, total, moment, top_k, top_p, typical_p, floor, u,
    reshaping, xtc_threshold, middle, dynatemp_range, dynatemp_exponent,
    WORDS: tl.constexpr, WIDTH: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """(where the drawn word stands among the `count` at `place`, how many words the filters leave). `moment` is the sum
    of w · log w where typical-p is alone, and `total` that of w."""
    cut, ties, heavier, above, descending = filters(
        place, count, least, best, temperature, WORDS, total, top_k, top_p, floor, WIDTH, CANDIDATES
    )
    centre, reach = best * 0, best * 0 + float("inf")
    if typical_p < 1:
        if lists_words(top_k, top_p):
            total = heavier + ties * weight_of(cut)
            moment = moment_left(place, count, least, best, temperature, cut, ties, CANDIDATES)
        centre, wanted = (moment / total).to(tl.float32), tl.minimum(goal_of(total, typical_p), total)
        reach, ties, heavier, above = typical_reach(
            place, count, least, best, temperature, cut, ties, centre, wanted, CANDIDATES
        )
        descending = descending & (typical_p >= 1)
    each = weight_of(cut)
    kept, many = heavier + ties * each, above + ties
    top, peak, warmth = cut * 0 + HEAVIEST, best, temperature
    if reshaping:
        top, peak, warmth, each, kept, many = reshaped(
            place, count, least, best, temperature, cut, ties, centre, reach, kept,
            xtc_threshold, middle, dynatemp_range, dynatemp_exponent, CANDIDATES,
        )  # fmt: skip
        descending = descending & (not reshaping)
    goal = tl.minimum((u * kept.to(tl.float64)).to(tl.int64), kept - 1)
    if descending:
        lower, _, _, _, mass = search(place, count, least, best, temperature, goal + 1, False, WIDTH, CANDIDATES)
        heavier, cut = tl.where(lower > cut, mass, heavier), tl.maximum(lower, cut)
        goal = (goal - heavier) // tl.maximum(weight_of(cut), 1)
        ties = total * 0 + WORDS
    word = pick(
        place, count, least, best, temperature, cut, ties, top, centre, reach, peak, warmth, each, goal, descending,
        WIDTH,
    )  # fmt: skip
    return word, many
