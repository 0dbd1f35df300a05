"""Triton functions for sampling.py: XTC and a dynamic temperature, which change what the filters leave before a word is
drawn of it.

What they leave is said as in typical.py: words above `cut` whose log w is within `reach` of `centre`, and `ties` words
at it. XTC leaves out what is above `top`. The weights that are drawn from are others then, exp((x - peak) / warmth), so
that what is left of a steep row counts with all digits.
Each is inlined into a kernel whose one program takes one row. Compiled ahead of time and checked in the interpreter;
not run on a GPU yet.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .typical import log_of, moments_of
from .weight_search import HEAVIEST, UNIT, fetch, is_left, weigh, weight_of

COLDEST = tl.constexpr(1e-30)  # a temperature at which only the likeliest words are left


@triton.jit
def lightest_top(source, count, least, best, temperature, cut, ties, centre, reach, goal, BLOCK: tl.constexpr):
    """The bits of the least likely word that is left and weighs at least `goal`; without any those of the heaviest."""
    lowest = tl.zeros([BLOCK], tl.int32) + HEAVIEST
    for start in range(0, count, BLOCK):
        logits = fetch(source, start + tl.arange(0, BLOCK), count, least)
        bits, weights = weigh(logits, best, temperature)
        there = is_left(logits, bits, best, temperature, cut, cut * 0 + HEAVIEST, centre, reach) & (weights >= goal)
        lowest = tl.where(there, tl.minimum(lowest, bits), lowest)
    return tl.where((ties > 0) & (weight_of(cut) >= goal), cut, tl.min(lowest, 0))


@triton.jit
def moments_below(source, count, least, best, temperature, cut, ties, top, centre, reach, BLOCK: tl.constexpr):
    """Of the words that are left up to `top`: their number, weight, sum of w · log w, and largest logit."""
    number = tl.zeros([BLOCK], tl.int32)
    mass = tl.zeros([BLOCK], tl.int64)
    moment = tl.zeros([BLOCK], tl.float64)
    peak = tl.zeros([BLOCK], tl.float32) + float("-inf")
    for start in range(0, count, BLOCK):
        logits = fetch(source, start + tl.arange(0, BLOCK), count, least)
        bits, weights = weigh(logits, best, temperature)
        there = is_left(logits, bits, best, temperature, cut, top, centre, reach)
        number += there.to(tl.int32)
        mass += tl.where(there, weights, 0)
        moment += moments_of(logits, tl.where(there, weights, 0), best, temperature)
        peak = tl.maximum(peak, tl.where(there, logits, float("-inf")))
    many, tied, log = tl.sum(number, 0).to(tl.int64), ties * weight_of(cut), log_of(cut)
    highest = tl.where(many > 0, tl.max(peak, 0), best + log * temperature)
    aside = tl.where(tied > 0, tied.to(tl.float64) * log.to(tl.float64), 0.0)
    return many + ties, tl.sum(mass, 0) + tied, tl.sum(moment, 0) + aside, highest


@triton.jit
def warmth_of(number, mass, moment, temperature, reach, exponent):
    """The temperature within `reach` of `temperature` that so many words with such moments have."""
    whole = tl.maximum(mass, 1).to(tl.float64)
    entropy = tl.log(whole / UNIT) - moment / whole
    even = entropy / tl.log(tl.maximum(number, 2).to(tl.float64))
    share = tl.exp(exponent.to(tl.float64) * tl.log(tl.maximum(even, 1e-300)))
    share = tl.where((even > 0) | (exponent == 0), share, 0.0).to(tl.float32)
    low = tl.maximum(temperature - reach, 0.0)
    return tl.maximum(low + (temperature + reach - low) * share, COLDEST)


@triton.jit
def mass_below(
    source, count, least, best, temperature, cut, top, centre, reach, peak, warmth, BLOCK: tl.constexpr
):  # fmt: skip
    """The sum of what the words that are left up to `top` weigh at `warmth`, without the ties."""
    mass = tl.zeros([BLOCK], tl.int64)
    for start in range(0, count, BLOCK):
        logits = fetch(source, start + tl.arange(0, BLOCK), count, least)
        bits, _ = weigh(logits, best, temperature)
        _, weights = weigh(tl.minimum(logits, peak), peak, warmth)
        mass += tl.where(is_left(logits, bits, best, temperature, cut, top, centre, reach), weights, 0)
    return tl.sum(mass, 0)


@triton.jit
def reshaped(
    source, count, least, best, temperature, cut, ties, centre, reach, kept,
    xtc_threshold, middle, dynatemp_range, dynatemp_exponent, BLOCK: tl.constexpr,
):  # fmt: skip
    """(top, peak, warmth, what each of the ties weighs, what all words weigh, their number). `kept`: the weight of what
    is left without XTC; `middle`: the temperature that the request names."""
    goal = tl.maximum(tl.ceil(kept.to(tl.float64) * xtc_threshold).to(tl.int64), 1)
    top = lightest_top(source, count, least, best, temperature, cut, ties, centre, reach, goal, BLOCK)
    number, mass, moment, peak = moments_below(
        source, count, least, best, temperature, cut, ties, top, centre, reach, BLOCK
    )
    warmth = temperature
    if dynatemp_range > 0:
        warmth = warmth_of(number, mass, moment, middle, dynatemp_range, dynatemp_exponent)
    _, each = weigh(best + log_of(cut) * temperature, peak, warmth)
    whole = mass_below(source, count, least, best, temperature, cut, top, centre, reach, peak, warmth, BLOCK)
    return top, peak, warmth, each, whole + ties * each, number
