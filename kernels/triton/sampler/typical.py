"""Triton functions for sampling.py: which words typical-p keeps of those that the other filters leave.

A word's distance is that of log w from its mean, weighted by w (cpu/shares.py): all words up to some distance stay.
`cut` and `ties` say what the others leave, as in weight_search.py; they leave `ties` words of just these bits.
Each is inlined into a kernel whose one program takes one row. Compiled ahead of time and checked in the interpreter;
not run on a GPU yet.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .weight_search import distance_of, fetch, weigh, weight_of

INFINITE = tl.constexpr(0x7F800000)  # the bits of an infinite distance
TURNS = tl.constexpr(31)  # of a bisection: there are fewer than 2^31 distances


@triton.jit
def moments_of(logits, weights, best, temperature):
    """w · log w, w in integers."""
    logs = tl.where(weights > 0, (logits - best) / temperature, 0.0)
    return weights.to(tl.float64) * logs.to(tl.float64)


@triton.jit
def log_of(bits):
    """log w."""
    return tl.log(bits.to(tl.float32, bitcast=True))


@triton.jit
def moment_left(source, count, least, best, temperature, cut, ties, BLOCK: tl.constexpr):
    """The sum of w · log w of what the other filters leave."""
    moment = tl.zeros([BLOCK], tl.float64)
    for start in range(0, count, BLOCK):
        logits = fetch(source, start + tl.arange(0, BLOCK), count, least)
        bits, weights = weigh(logits, best, temperature)
        moment += moments_of(logits, tl.where(bits > cut, weights, 0), best, temperature)
    tied = ties * weight_of(cut)
    return tl.sum(moment, 0) + tl.where(tied > 0, tied.to(tl.float64) * log_of(cut).to(tl.float64), 0.0)


@triton.jit
def near(source, count, least, best, temperature, cut, centre, reach, BLOCK: tl.constexpr):
    """How many words above `cut` are within `reach` of `centre`, and the sum of their weights."""
    number = tl.zeros([BLOCK], tl.int32)
    mass = tl.zeros([BLOCK], tl.int64)
    for start in range(0, count, BLOCK):
        logits = fetch(source, start + tl.arange(0, BLOCK), count, least)
        bits, weights = weigh(logits, best, temperature)
        there = (bits > cut) & (distance_of(logits, best, temperature, centre) <= reach)
        number += there.to(tl.int32)
        mass += tl.where(there, weights, 0)
    return tl.sum(number, 0).to(tl.int64), tl.sum(mass, 0)


@triton.jit
def typical_reach(source, count, least, best, temperature, cut, ties, centre, goal, BLOCK: tl.constexpr):
    """The smallest distance from `centre` such that the words up to it weigh at least `goal`; how many of the ties are
    among these, the weight of the others, and their number."""
    low = cut * 0
    high = low + INFINITE
    tied, aside = ties * weight_of(cut), tl.abs(log_of(cut) - centre)
    above, heavier = ties * 0, ties * 0
    for _ in range(TURNS):
        middle = low + (high - low) // 2
        reach = middle.to(tl.float32, bitcast=True)
        number, mass = near(source, count, least, best, temperature, cut, centre, reach, BLOCK)
        enough = mass + tl.where(aside <= reach, tied, 0) >= goal
        above, heavier = tl.where(enough, number, above), tl.where(enough, mass, heavier)
        low, high = tl.where(enough, low, middle + 1), tl.where(enough, middle, high)
    reach = high.to(tl.float32, bitcast=True)
    return reach, tl.where(aside <= reach, ties, 0), heavier, above
