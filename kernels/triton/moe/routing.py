"""Triton: which experts a token goes through, and the tokens of each expert side by side, in blocks.

    share_e = softmax(scores)_e or sigmoid(scores)_e        of the `choices` experts whose score is highest
    of experts in groups only those can be chosen whose group is one of the `kept` best, by the sum of the scores of the
    `best` best of each
    shares are made to add up to 1, if `normalised`, and are multiplied with `factor`
Of experts of the same score the first is taken. A pair is a token and one of its choices: token · choices + choice.
Pairs are put into blocks of `block`, each of one expert, so that a product can take a block as its rows:
    chosen  [tokens, choices]   the number of an expert among those here; -1: it is not here, or nobody has the token
    pairs   [blocks · block]    the pairs of block b stand at b · block and on, in the order of their tokens
    blocks  [blocks, 2]         (expert, how many pairs); (-1, 0) where there is no block

Up to 16 tokens one program does all of it, in registers: each expert has one block at most. Of more tokens each 16 are
one program's; it counts, and a second kernel adds up what those before it have counted. Nothing of it is decided by who
comes first, and grids follow from shapes alone, so that a graph that captured it serves any routing.

Compiled ahead of time and checked in the interpreter; not run on a GPU yet. Knows tensors only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 16  # of one program
MOST_EXPERTS = 1024
MOST_CHOICES = 32
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Routing(NamedTuple):
    """How experts are chosen, and which are here."""

    experts: int  # that can be chosen
    choices: int  # of a token
    sigmoid: bool = False  # in place of softmax
    normalised: bool = False
    factor: float = 1.0
    first: int = 0  # of those that are here
    here: int = 0  # how many; 0: all
    groups: int = 1  # of as many experts, one after the other
    kept: int = 1  # of the groups of a token
    best: int = 1  # experts of a group that speak for it, one or two

    @property
    def own(self) -> int:
        """How many are here."""
        return self.here or self.experts

    def most_blocks(self, tokens: int, block: int) -> int:
        """How many blocks so many tokens may need."""
        pairs = tokens * self.choices
        return min(pairs, self.own) + (0 if tokens <= TOKENS else pairs // block)


class Routed(NamedTuple):
    """Whose pair goes where."""

    chosen: Tensor  # int32 [tokens, choices]
    shares: Tensor  # float32 [tokens, choices]
    pairs: Tensor  # int32 [blocks * block]
    blocks: Tensor  # int32 [blocks, 2]


@triton.jit
def possible(
    scores, correction, token, tokens, score_row, expert,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr, SIGMOID: tl.constexpr, CORRECTED: tl.constexpr,
    GROUPS: tl.constexpr, KEPT: tl.constexpr, BEST: tl.constexpr, GROUPS_PADDED: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """Whether an expert's group is kept, [TOKENS, PADDED]."""
    size: tl.constexpr = EXPERTS // GROUPS
    group, member = tl.arange(0, GROUPS_PADDED), tl.arange(0, MEMBERS)
    there = (group < GROUPS)[:, None] & (member < size)[None, :]
    at = group[:, None] * size + member[None, :]
    given = (token < tokens)[:, None, None] & there[None, :, :]
    place = scores + token.to(tl.int64)[:, None, None] * score_row + at[None, :, :]
    score = tl.load(place, mask=given, other=0.0).to(tl.float32)
    if SIGMOID:
        score = 1.0 / (1.0 + tl.exp(-score))
    if CORRECTED:
        score += tl.load(correction + at, mask=there, other=0.0).to(tl.float32)[None, :, :]
    score = tl.where(there[None, :, :], score, float("-inf"))
    total = tl.max(score, 2)
    if BEST > 1:
        first = tl.argmax(score, 2)[:, :, None] == member[None, None, :]
        total += tl.max(tl.where(first, float("-inf"), score), 2)
    total = tl.where((group < GROUPS)[None, :], total, float("-inf"))
    kept = tl.zeros([TOKENS, PADDED], tl.int32)
    for _ in range(KEPT):
        highest = tl.argmax(total, 1)[:, None]
        total = tl.where(group[None, :] == highest, float("-inf"), total)
        kept = kept | (expert[None, :] // size == highest).to(tl.int32)
    return kept > 0


@triton.jit(do_not_specialize=["tokens", "blocks_here"], do_not_specialize_on_alignment=["slots", "correction"])
def route_kernel(
    scores, correction, slots, chosen, shares, counts, pairs, blocks, score_row, tokens, first, factor, blocks_here,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, OWN: tl.constexpr, CHOICES: tl.constexpr, COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr, SIGMOID: tl.constexpr, NORMALISED: tl.constexpr,
    CORRECTED: tl.constexpr, SOME: tl.constexpr, ALONE: tl.constexpr,
    GROUPS: tl.constexpr, KEPT: tl.constexpr, BEST: tl.constexpr, GROUPS_PADDED: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """The choices of TOKENS tokens. ALONE: there are no others, and their pairs are put into blocks, too."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    expert, column = tl.arange(0, PADDED), tl.arange(0, COLUMNS)
    if GROUPS > 1:  # before all else, since it takes registers
        kept = possible(
            scores, correction, token, tokens, score_row, expert, EXPERTS, PADDED, TOKENS, SIGMOID, CORRECTED,
            GROUPS, KEPT, BEST, GROUPS_PADDED, MEMBERS,
        )  # fmt: skip
    given = (token < tokens)[:, None] & (expert < EXPERTS)[None, :]
    score = tl.load(scores + token.to(tl.int64)[:, None] * score_row + expert[None, :], mask=given, other=0.0)
    score = score.to(tl.float32)
    if SIGMOID:
        share = 1.0 / (1.0 + tl.exp(-score))
    else:
        score = tl.where((expert < EXPERTS)[None, :], score, float("-inf"))
        share = tl.exp(score - tl.max(score, 1)[:, None])
        share = share / tl.sum(share, 1)[:, None]
    if CORRECTED:  # who is chosen, and not with what share
        score = share + tl.load(correction + expert, mask=expert < EXPERTS, other=0.0).to(tl.float32)[None, :]
    left = tl.where((expert < EXPERTS)[None, :], score, float("-inf"))
    if GROUPS > 1:
        left = tl.where(kept, left, float("-inf"))
    somebody = token < tokens
    if SOME:  # a token without a slot is nobody's
        somebody = somebody & (tl.load(slots + token, mask=somebody, other=-1) >= 0)
    own = (expert >= first) & (expert < first + OWN)
    taken = tl.zeros([TOKENS, COLUMNS], tl.float32)
    who = tl.full([TOKENS, COLUMNS], -1, tl.int32)
    pair = tl.full([TOKENS, PADDED], -1, tl.int32)
    for choice in range(CHOICES):
        best = tl.argmax(left, 1)
        hit = expert[None, :] == best[:, None]
        left = tl.where(hit, float("-inf"), left)
        now = (column == choice)[None, :]
        taken = tl.where(now, tl.sum(tl.where(hit, share, 0.0), 1)[:, None], taken)
        here = somebody & (best >= first) & (best < first + OWN)
        who = tl.where(now & here[:, None], (best - first).to(tl.int32)[:, None], who)
        pair = tl.where(hit & own[None, :] & somebody[:, None], (token * CHOICES + choice)[:, None], pair)
    if NORMALISED:
        taken = taken / tl.sum(taken, 1)[:, None]
    place = token[:, None] * CHOICES + column[None, :]
    inside = (token < tokens)[:, None] & (column < CHOICES)[None, :]
    tl.store(shares + place, taken * factor, mask=inside)
    tl.store(chosen + place, who, mask=inside)
    one = (pair >= 0).to(tl.int32)
    count = tl.sum(one, 0)
    number = expert - first
    if ALONE:
        used = (count > 0).to(tl.int32)
        block = tl.cumsum(used, 0) - used
        rank = tl.cumsum(one, 0) - one
        tl.store(pairs + block[None, :] * BLOCK + rank, pair, mask=pair >= 0)
        tl.store(blocks + block * 2, number, mask=used > 0)
        tl.store(blocks + block * 2 + 1, count, mask=used > 0)
        rest = tl.sum(used, 0) + tl.arange(0, MOST)
        tl.store(blocks + rest * 2, rest * 0 - 1, mask=rest < blocks_here)
        tl.store(blocks + rest * 2 + 1, rest * 0, mask=rest < blocks_here)
    else:
        tl.store(counts + tl.program_id(0) * OWN + number, count, mask=own)


@triton.jit(do_not_specialize=["tokens", "blocks_here"])
def place_kernel(
    chosen, counts, pairs, blocks, tokens, blocks_here,
    PADDED: tl.constexpr, OWN: tl.constexpr, CHOICES: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The pairs of TOKENS tokens to their blocks, and what is to be said of some blocks."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    expert = tl.arange(0, PADDED)
    before = tl.zeros([PADDED], tl.int32)
    total = tl.zeros([PADDED], tl.int32)
    for start in range(0, programs, AT_ONCE):
        index = start + tl.arange(0, AT_ONCE)
        given = (index < programs)[:, None] & (expert < OWN)[None, :]
        some = tl.load(counts + index[:, None] * OWN + expert[None, :], mask=given, other=0)
        total += tl.sum(some, 0)
        before += tl.sum(tl.where((index < program)[:, None], some, 0), 0)
    needed = (total + BLOCK - 1) // BLOCK
    ends = tl.cumsum(needed, 0)
    token = program * TOKENS + tl.arange(0, TOKENS)
    pair = tl.full([TOKENS, PADDED], -1, tl.int32)
    for choice in range(CHOICES):
        own = tl.load(chosen + token * CHOICES + choice, mask=token < tokens, other=-1)
        pair = tl.where(expert[None, :] == own[:, None], (token * CHOICES + choice)[:, None], pair)
    one = (pair >= 0).to(tl.int32)
    place = ((ends - needed) * BLOCK + before)[None, :] + tl.cumsum(one, 0) - one
    tl.store(pairs + place, pair, mask=pair >= 0)
    each = (blocks_here + programs - 1) // programs
    for start in range(0, each, TOKENS):
        step = start + tl.arange(0, TOKENS)
        block = program * each + step
        number = tl.sum((ends[None, :] <= block[:, None]).to(tl.int32), 1)  # experts whose blocks come before
        its = expert[None, :] == number[:, None]
        rest = tl.sum(tl.where(its, (total - (block[:, None] - (ends - needed)[None, :]) * BLOCK), 0), 1)
        used = (number < OWN) & (rest > 0)
        wanted = (step < each) & (block < blocks_here)
        tl.store(blocks + block * 2, tl.where(used, number, -1), mask=wanted)
        tl.store(blocks + block * 2 + 1, tl.where(used, tl.minimum(rest, BLOCK), 0), mask=wanted)


def route(
    scores: Tensor, routing: Routing, block: int, slots: Tensor | None = None, correction: Tensor | None = None
) -> Routed:
    """Of each token its experts, and the pairs of each expert in blocks.

    scores      [tokens, experts], floats; rows may lie apart
    block       pairs of a block, 16 or more
    slots       int64 [tokens]: where there is -1 the token is nobody's, and goes nowhere
    correction  [experts], added to shares where the highest are looked for
    """
    _check(scores, routing, block, slots, correction)
    tokens, device = len(scores), scores.device
    chosen = torch.empty(tokens, routing.choices, dtype=torch.int32, device=device)
    shares = torch.empty(tokens, routing.choices, dtype=torch.float32, device=device)
    most = routing.most_blocks(tokens, block)
    numbers = torch.empty(most * (block + 2), dtype=torch.int32, device=device)
    pairs, blocks = numbers[: most * block], numbers[most * block :].view(most, 2)
    if not tokens:
        return Routed(chosen, shares, pairs, blocks)
    programs = triton.cdiv(tokens, TOKENS)
    counts = chosen if programs == 1 else torch.empty(programs, routing.own, dtype=torch.int32, device=device)
    padded = triton.next_power_of_2(routing.experts)
    warps = 8 if padded > 128 else 4
    sizes = {"OWN": routing.own, "CHOICES": routing.choices, "TOKENS": TOKENS, "BLOCK": block, "num_warps": warps}
    route_kernel[(programs,)](
        scores, shares if correction is None else correction, chosen if slots is None else slots, chosen, shares,
        counts, pairs, blocks, scores.stride(0), tokens, routing.first, float(routing.factor), most,
        EXPERTS=routing.experts, PADDED=padded, COLUMNS=triton.next_power_of_2(routing.choices),
        MOST=triton.next_power_of_2(min(TOKENS * routing.choices, routing.own)),
        SIGMOID=routing.sigmoid, NORMALISED=routing.normalised, CORRECTED=correction is not None,
        SOME=slots is not None, ALONE=programs == 1, GROUPS=routing.groups, KEPT=routing.kept, BEST=routing.best,
        GROUPS_PADDED=triton.next_power_of_2(routing.groups),
        MEMBERS=triton.next_power_of_2(routing.experts // routing.groups), **sizes,
    )  # fmt: skip
    if programs > 1:
        own = triton.next_power_of_2(routing.own)
        place_kernel[(programs,)](
            chosen, counts, pairs, blocks, tokens, most, PADDED=own, AT_ONCE=max(1, min(32, 4096 // own)), **sizes
        )
    return Routed(chosen, shares, pairs, blocks)


def _check(scores: Tensor, routing: Routing, block: int, slots: Tensor | None, correction: Tensor | None) -> None:
    if scores.dim() != 2 or scores.dtype not in DTYPES or scores.shape[1] != routing.experts or scores.stride(1) != 1:
        raise ValueError(f"scores {scores.dtype}{list(scores.shape)} must be floats [tokens, {routing.experts}]")
    if not 0 < routing.experts <= MOST_EXPERTS or not 0 < routing.choices <= min(MOST_CHOICES, routing.experts):
        raise ValueError(f"{routing.choices} of {routing.experts} experts: up to {MOST_CHOICES} of {MOST_EXPERTS}")
    if not 0 <= routing.first <= routing.first + routing.own <= routing.experts:
        raise ValueError(f"experts {routing.first} to {routing.first + routing.own} of {routing.experts}")
    _check_groups(routing, correction is not None)
    if block < TOKENS or block & (block - 1):
        raise ValueError(f"block {block} must be a power of two from {TOKENS}")
    if slots is not None and (slots.shape != scores.shape[:1] or slots.dtype != torch.int64 or slots.stride(0) != 1):
        raise ValueError(f"slots {slots.dtype}{list(slots.shape)} do not fit scores {list(scores.shape)}")
    if correction is not None and (correction.shape != scores.shape[1:] or correction.dtype not in DTYPES):
        raise ValueError(f"correction {correction.dtype}{list(correction.shape)} does not fit {list(scores.shape)}")


def _check_groups(routing: Routing, corrected: bool) -> None:
    groups, size = routing.groups, routing.experts // max(1, routing.groups)
    if (
        groups < 1
        or routing.experts % groups
        or not 0 < routing.kept <= groups
        or routing.choices > routing.kept * size
    ):
        raise ValueError(f"{routing.choices} experts of {routing.kept} of {groups} groups of {routing.experts} experts")
    by_softmax = groups > 1 and not routing.sigmoid  # whose order is that of scores, but of no sum of them
    if not 0 < routing.best <= min(2, size) or (by_softmax and (routing.best > 1 or corrected)):
        raise ValueError(f"groups by their {routing.best} best experts: one, or two whose scores are sigmoids")
