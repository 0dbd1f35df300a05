"""Triton: where the scores of a query are that count, and the slots of what they are of, in the order of positions.

Scores are integers, ordered as what they stand for. The smallest of the `topk` that count, the cut, is found eight bits
at a time from the highest on, by how many scores have which bits there; of those that are just this the first count. So
it is exact, and the same however a query is divided:
    one program for each query   counts four times, and writes
    several                      digits_kernel for each eight bits, then select_kernel: what a part has counted is there
                                 for all in the next launch, in which each adds it up for itself. So a part knows how
                                 many that count, or are the cut, are before its own, and where its slots are written.
Parts follow from a query's length, which is read on the device: so many of them as there are have something to do.

Compiled ahead of time and checked in the interpreter; not run on a GPU yet. Knows tensors only.
"""

from __future__ import annotations

import triton
import triton.language as tl

DIGITS = 4  # of eight bits: launches of digits_kernel
VALUES = tl.constexpr(256)  # that a digit has
STATE = tl.constexpr(3)  # numbers that a part keeps from launch to launch
TOGETHER = tl.constexpr(8)  # parts whose counts are read at a time
SIGN = tl.constexpr(-(1 << 31))


@triton.jit
def slots_of(table, positions, there, BLOCK_SIZE: tl.constexpr):
    """Where positions are kept."""
    block = tl.load(table + positions // BLOCK_SIZE, mask=there, other=0)
    return block * BLOCK_SIZE + positions % BLOCK_SIZE


@triton.jit
def whole(length):
    """Up to where scores are read, at 16 bytes a time: a row of them has a multiple of as many numbers."""
    return tl.cdiv(length, 16) * 16


@triton.jit
def portion_of(length, parts, LANES: tl.constexpr):
    """Positions of a part."""
    return tl.cdiv(tl.cdiv(length, parts), LANES) * LANES


@triton.jit
def counts_of(source, begin, end, cut, turn, LANES: tl.constexpr):
    """How many scores from `begin` on, a multiple of LANES, have which digit, of those whose digits before are the
    cut's."""
    shift = 24 - 8 * turn
    known = -((cut * 0 + VALUES) << shift)  # the digits before, of 32 bits: none in the first turn
    counts = tl.zeros([VALUES], tl.int32)
    for start in range(begin, end, LANES):
        at = start + tl.arange(0, LANES)
        bits = tl.load(source + at, mask=at < whole(end), other=0) ^ SIGN
        alike = (at < end) & (((bits ^ cut) & known) == 0)
        counts += tl.histogram((bits >> shift) & (VALUES - 1), VALUES, mask=alike)
    return counts


@triton.jit
def digit_of(counts, wanted):
    """(the highest digit from which upwards there are as many as are wanted; how many of just this one are)."""
    upwards = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
    numbers = tl.arange(0, VALUES)
    digit = tl.max(tl.where(upwards >= wanted, numbers, 0), 0)
    return digit, wanted - tl.sum(tl.where(numbers > digit, counts, 0), 0)


@triton.jit
def cut_of(source, length, LANES: tl.constexpr, TOPK: tl.constexpr):
    """(the smallest score that counts, in the order of unsigned numbers; how many that are just this count)."""
    cut, wanted = length * 0, length * 0 + TOPK
    for turn in range(4):
        counts = counts_of(source, 0, length, cut, turn, LANES)
        digit, wanted = digit_of(counts, wanted)
        cut = cut | (digit << (24 - 8 * turn))
    return cut, wanted


@triton.jit
def cut_so_far(counts, state, part, alive, turn):
    """With what all parts have counted in the turn before: (the cut, as far as it is known by then; how many that begin
    so count; how many scores in the parts before this one are above it; how many there begin as it does)."""
    cut, wanted, before = tl.load(state), tl.load(state + 1), tl.load(state + 2)
    row, number = tl.arange(0, TOGETHER), tl.arange(0, VALUES)
    everywhere, ahead = tl.zeros([TOGETHER, VALUES], tl.int32), tl.zeros([TOGETHER, VALUES], tl.int32)
    for start in range(0, alive, TOGETHER):
        own = (start + row)[:, None]
        found = tl.load(counts + own * VALUES + number[None, :], mask=own < alive, other=0)
        everywhere += found
        ahead += tl.where(own < part, found, 0)
    digit, wanted = digit_of(tl.sum(everywhere, 0), wanted)
    counted = tl.sum(ahead, 0)
    before += tl.sum(tl.where(number > digit, counted, 0), 0)
    return cut | (digit << (32 - 8 * turn)), wanted, before, tl.sum(tl.where(number == digit, counted, 0), 0)


@triton.jit(do_not_specialize=["turn"], do_not_specialize_on_alignment=["lengths"])
def digits_kernel(scores, lengths, counts, states, turn, scores_row, LANES: tl.constexpr, TOPK: tl.constexpr):
    """One part of a query. `counts` [2, queries, parts, VALUES] are those of this turn and of the one before, by turns;
    `states` [queries, parts, STATE]."""
    token, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    length = tl.load(lengths + token)
    portion = portion_of(length, parts, LANES)
    begin = part * portion
    if (length <= TOPK) | (begin >= length):
        return
    state, every = states + (token * parts + part) * STATE, tl.num_programs(0)
    cut, wanted, before = length * 0, length * 0 + TOPK, length * 0
    if turn > 0:
        others = counts + (((turn + 1) % 2) * every + token) * parts * VALUES
        cut, wanted, before, _ = cut_so_far(others, state, part, tl.cdiv(length, portion), turn)
    tl.store(state, cut)
    tl.store(state + 1, wanted)
    tl.store(state + 2, before)
    source, end = scores + token.to(tl.int64) * scores_row, tl.minimum(begin + portion, length)
    own = counts + (((turn % 2) * every + token) * parts + part) * VALUES
    tl.store(own + tl.arange(0, VALUES), counts_of(source, begin, end, cut, turn, LANES))


@triton.jit(do_not_specialize=["table_row"], do_not_specialize_on_alignment=["table", "owners", "lengths", "slots"])
def select_kernel(
    scores, table, owners, lengths, slots, counts, states, table_row, scores_row,
    BLOCK_SIZE: tl.constexpr, LANES: tl.constexpr, TOPK: tl.constexpr, DIVIDED: tl.constexpr,
):  # fmt: skip
    """What one query sees, of one part if it is DIVIDED."""
    token, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    length = tl.load(lengths + token)
    portion = portion_of(length, parts, LANES)
    begin = part * portion
    if begin >= length:
        return
    end = tl.minimum(begin + portion, length)
    own = table + tl.load(owners + token).to(tl.int64) * table_row
    target = slots + token * TOPK
    if length <= TOPK:
        for start in range(begin, end, LANES):
            at = start + tl.arange(0, LANES)
            tl.store(target + at, slots_of(own, at, at < end, BLOCK_SIZE), mask=at < end)
    else:
        source = scores + token * scores_row
        if DIVIDED:
            others, state = (
                counts + (tl.num_programs(0) + token) * parts * VALUES,
                states + (token * parts + part) * STATE,
            )
            cut, wanted, before, tied = cut_so_far(others, state, part, tl.cdiv(length, portion), 4)
        else:
            cut, wanted = cut_of(source, length, LANES, TOPK)
            before, tied = length * 0, length * 0
        cut = cut ^ SIGN
        for start in range(begin, end, LANES):
            at = start + tl.arange(0, LANES)
            there = at < end
            score = tl.load(source + at, mask=at < whole(end), other=0)
            tie = (there & (score == cut)).to(tl.int32)
            first = (tie > 0) & (tied + tl.cumsum(tie, 0) <= wanted)
            seen = (there & (score > cut)) | first
            number = seen.to(tl.int32)
            place = before + tl.minimum(tied, wanted)
            tl.store(target + place + tl.cumsum(number, 0) - number, slots_of(own, at, seen, BLOCK_SIZE), mask=seen)
            before += tl.sum((there & (score > cut)).to(tl.int32), 0)
            tied += tl.sum(tie, 0)
