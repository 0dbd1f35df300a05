"""Triton functions for sampling.py: weights of words as integers, sums of them, and searches by bisection.

`source` is where logits stand, `count` how many; `least` the smallest that is looked at, best their largest,
w = exp((x - best) / temperature).
Bits of w as an int32 are ordered as w is; a weight counts as floor(w · 2^40), so that sums are exact.
Each is inlined into a kernel whose one program takes one row. Compiled ahead of time and checked in the interpreter;
not run on a GPU yet.
"""

from __future__ import annotations

import triton
import triton.language as tl

UNIT = tl.constexpr(float(1 << 40))  # a weight of 1
HEAVIEST = tl.constexpr(0x3F800000)  # the bits of 1.0, the largest weight
TURNS = tl.constexpr(30)  # of a bisection: there are fewer than 2^30 weights
ORDERED = tl.constexpr(80)  # sampling.CANDIDATES: up to so many words are drawn from in descending order there
PADDING = tl.constexpr(64)  # sampling.BLOCK


@triton.jit
def fetch(source, at, count, least):
    """Logits; what is not there, no number, or less than `least`, is -inf."""
    logits = tl.load(source + at, mask=at < count, other=float("-inf")).to(tl.float32)
    return tl.where(logits >= least, logits, float("-inf"))


@triton.jit
def weigh(logits, best, temperature):
    """(bits of w, w in integers): both in the order of the logits."""
    weights = tl.exp((logits - best) / temperature)
    return weights.to(tl.int32, bitcast=True), (weights * UNIT).to(tl.int64)


@triton.jit
def distance_of(logits, best, temperature, centre):
    """How far log w is from `centre`."""
    return tl.abs((logits - best) / temperature - centre)


@triton.jit
def is_left(logits, bits, best, temperature, cut, top, centre, reach):
    """Whether words are above `cut`, not above `top`, and their log w is within `reach` of `centre`."""
    return (bits > cut) & (bits <= top) & (distance_of(logits, best, temperature, centre) <= reach)


@triton.jit
def weight_of(bits):
    """w in integers."""
    return (bits.to(tl.float32, bitcast=True) * UNIT).to(tl.int64)


@triton.jit
def held_in(source, count, least, best, temperature, low, BLOCK: tl.constexpr):
    """How many words have bits of at least `low`, and the sum of their weights, by blocks."""
    number = tl.zeros([BLOCK], tl.int32)
    mass = tl.zeros([BLOCK], tl.int64)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        bits, weights = weigh(fetch(source, at, count, least), best, temperature)
        there = (bits >= low) & (at < count)
        number += there.to(tl.int32)
        mass += tl.where(there, weights, 0)
    return tl.sum(number, 0).to(tl.int64), tl.sum(mass, 0)


@triton.jit
def held(source, count, least, best, temperature, low, LANES: tl.constexpr, CANDIDATES: tl.constexpr):
    """The same, with blocks of a fitting size."""
    if count <= CANDIDATES:
        number, mass = held_in(source, count, least, best, temperature, low, CANDIDATES)
    else:
        number, mass = held_in(source, count, least, best, temperature, low, LANES)
    return number, mass


@triton.jit
def search(
    source, count, least, best, temperature, goal, COUNTED: tl.constexpr, LANES: tl.constexpr, CANDIDATES: tl.constexpr
):  # fmt: skip
    """(the largest bits such that the words from there upwards number, or weigh, at least `goal`, 0 if none do; the
    number and weight of these words, unknown of 0; and of those above)."""
    low = goal.to(tl.int32) * 0
    high = low + HEAVIEST + 1
    reaching, mass, above, heavier = goal * 0, goal * 0, goal * 0, goal * 0
    for _ in range(TURNS):
        middle = (low + high) // 2
        number, weight = held(source, count, least, best, temperature, middle, LANES, CANDIDATES)
        enough = (number if COUNTED else weight) >= goal
        behind = (not enough) & (middle > low)
        low, high = tl.where(enough, middle, low), tl.where(behind, middle, high)
        reaching, mass = tl.where(enough, number, reaching), tl.where(enough, weight, mass)
        above, heavier = tl.where(behind, number, above), tl.where(behind, weight, heavier)
    return low, reaching, mass, above, heavier


@triton.jit
def filters(
    source, count, least, best, temperature, words, total, top_k, top_p, floor,
    LANES: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """What top-k, top-p and min-p leave: (smallest bits, how many words of just these bits, weight of the rest above,
    number of the rest above, whether a CPU draws in descending order)."""
    size = tl.cdiv(words, PADDING) * PADDING
    limited = (top_k > 0) & (top_k < size)
    kth, last, least_bits = floor * 0, floor * 0, tl.maximum(floor, 1)
    number, staying, within = total * 0, total * 0, total * 0
    whole = total
    if limited:
        kth, number, whole, above, heavier = search(
            source, count, least, best, temperature, top_k, True, LANES, CANDIDATES
        )
        number, whole = tl.where(kth > 0, number, above), tl.where(kth > 0, whole, heavier)
    if top_p < 1:
        limit = tl.maximum(tl.ceil(whole.to(tl.float64) * top_p).to(tl.int64), 1)
        last, _, _, above, heavier = search(source, count, least, best, temperature, limit, False, LANES, CANDIDATES)
        staying = tl.cdiv(limit - heavier, tl.maximum(weight_of(last), 1))
        within = above + staying
    cut = tl.maximum(tl.maximum(kth, last), least_bits)
    likely, above, reaching, heavier = total * 0, total * 0, total * 0, total * 0
    for turn in range(4):  # from these bits on; one piece of code for all, which is long to compile
        bits = tl.where(turn == 0, 1, tl.where(turn == 1, least_bits, tl.where(turn == 2, cut, cut + 1)))
        many, heavier = held(source, count, least, best, temperature, bits, LANES, CANDIDATES)
        within = tl.where((turn == 0) & (top_p >= 1), many, within)
        likely = tl.where(turn == 1, many, likely)
        reaching = tl.where(turn == 2, many, reaching)
        above = many
    ties = reaching - above
    if cut == last:
        ties = tl.minimum(ties, staying)
    few = (kth > 0) & (top_k <= ORDERED) & (number < ORDERED)
    descending = tl.where(limited, few, (within <= ORDERED) | (likely < ORDERED)) | (size <= ORDERED)
    return cut, ties, heavier, above, descending


@triton.jit
def pick(
    source, count, least, best, temperature, cut, ties, top, centre, reach, peak, warmth, each, goal, descending,
    LANES: tl.constexpr,
):  # fmt: skip
    """The first place at which the cumulated weight passes `goal`: of words above `cut` and not above `top` whose log w
    is within `reach` of `centre`, by what they weigh at `warmth`, and `ties` words at the cut, which weigh `each`.

    Descending: the place of word number `goal` of those at the cut.
    """
    chosen = cut * 0
    before = goal * 0
    seen = goal * 0
    each = tl.where(descending, 1, each)
    for start in range(0, count, LANES):
        at = start + tl.arange(0, LANES)
        logits = fetch(source, at, count, least)
        bits, _ = weigh(logits, best, temperature)
        _, weights = weigh(tl.minimum(logits, peak), peak, warmth)
        there = is_left(logits, bits, best, temperature, cut, top, centre, reach)
        weights = tl.where(there & (not descending), weights, 0)
        tie = ((bits == cut) & (at < count)).to(tl.int64)
        tied = tl.sum(tie, 0)
        mass = tl.sum(weights, 0) + each * tl.minimum(tl.maximum(ties - seen, 0), tied)
        if (before <= goal) & (goal < before + mass):
            rank = seen + tl.cumsum(tie, 0) - tie
            cumulated = before + tl.cumsum(weights + tl.where(rank < ties, tie * each, 0), 0)
            chosen = tl.min(tl.where(cumulated > goal, at, count), 0)
        before += mass
        seen += tied
    return chosen
