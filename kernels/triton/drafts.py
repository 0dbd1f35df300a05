"""Triton: drafts of rows, made and verified on the device, so that no step waits until the host has seen a token.

Row i of a step with room for drafts has 1 + room[i] tokens: the one that was drawn last and, behind it, drafts.
    propose    looks for the longest ending of the row's tokens, of SHORTEST to LONGEST of them, that came before, and
               of its occurrences for the last one; what followed are the drafts, in a circle where it reaches the end
    verify     of the tokens drawn behind each of the row's tokens, those count whose drafts were drawn as well, and the
               one that follows: they are written behind the row's tokens, the last one becomes its next input
    follow     for what goes on from a row's tokens: behind each of a step the one that stands there by now, and which
               of the step's tokens is the last one that has such a token
Tokens are drawn by (seed, position), so a draft that is drawn is what would have been drawn without it
(actors/worker/speculative/verifier.py says why that is right). Rows that found nothing have drafts of no meaning, of
which none counts; keys and values of what does not count are written again before anything reads them.

Grids follow from shapes alone. Checked in the interpreter; not run on a GPU yet. Knows tensors only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .step_inputs import RowState, StepInputs

TILE = 1024  # positions that are compared at a time
FOLLOWED = 256  # tokens of one program


class Lookup(NamedTuple):
    """How many tokens have to match, and how many drafts there are at most."""

    shortest: int
    longest: int
    drafts: int


class DraftState(NamedTuple):
    """What the device knows of each row from step to step, beside RowState."""

    tokens: Tensor  # int32 [rows, length]: its tokens, as far as they are known
    drafted: Tensor  # int64 [rows]: its drafts in the step that runs

    @classmethod
    def make(cls, rows: int, length: int, device: torch.device | str) -> DraftState:
        tokens = torch.zeros(rows, length, dtype=torch.int32, device=device)
        return cls(tokens, torch.zeros(rows, dtype=torch.int64, device=device))


@triton.jit(do_not_specialize_on_alignment=["rows", "starts", "room"])
def propose_kernel(
    rows, starts, room, ids, positions, tokens, tokens_row, drafted,
    SHORTEST: tl.constexpr, LONGEST: tl.constexpr, DRAFTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One row."""
    index = tl.program_id(0)
    row = tl.load(rows + index)
    wanted = tl.load(room + index)
    if (row < 0) | (wanted <= 0):
        return
    start = tl.load(starts + index)
    known = tl.load(positions + start) + 1
    line = tokens + row * tokens_row
    best = known * 0 - 1  # matching tokens << 32 | where they end
    for at in range(SHORTEST - 1, known - 1, TILE):
        end = at + tl.arange(0, TILE).to(tl.int64)
        alive = end < known - 1
        matching = tl.zeros([TILE], tl.int64)
        for back in range(LONGEST):
            alive = alive & (end >= back)
            ending = tl.load(line + tl.maximum(known - 1 - back, 0))  # nobody is alive where there is none
            alive = alive & (tl.load(line + end - back, mask=alive, other=0) == ending)
            matching += alive.to(tl.int64)
        best = tl.maximum(best, tl.max(tl.where(matching >= SHORTEST, matching << 32 | end, -1), 0))
    number = tl.arange(0, DRAFTS).to(tl.int64)
    found = (best & 0xFFFFFFFF) + 1
    drafts = (number < wanted) & (best >= 0)
    words = tl.load(line + found + number % tl.where(best >= 0, known - found, 1), mask=drafts, other=0)
    tl.store(ids + start + 1 + number, words.to(tl.int64), mask=number < wanted)
    tl.store(drafted + row, tl.where(best >= 0, wanted, 0))


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows", "at", "drawn"])
def verify_kernel(rows, at, drawn, count, ids, positions, tokens, tokens_row, drafted, last, following, outcome):
    """One token that was drawn; the first one of each row does the work for all of them."""
    index = tl.program_id(0)
    row = tl.load(rows + index)
    before = tl.load(rows + index - 1, mask=index > 0, other=-1)
    if (row < 0) | (row == before):
        return
    position = tl.load(positions + tl.load(at + index)) + 1
    line = tokens + row * tokens_row + position
    token = tl.load(drawn + index)
    tl.store(line, token)
    accepted = index * 0
    most = tl.load(drafted + row)
    several = tl.load(rows + index + 1, mask=index + 1 < count, other=-1) == row
    most = tl.where(several, most, 0)  # of an earlier step, it may be
    right = several
    while right:
        following_at = index + accepted + 1
        same = tl.load(rows + following_at, mask=following_at < count, other=-1) == row
        draft = tl.load(ids + tl.load(at + following_at, mask=same, other=0), mask=same, other=-1)
        right = same & (accepted < most) & (draft == token)
        if right:
            accepted += 1
            token = tl.load(drawn + following_at)
            tl.store(line + accepted, token)
    tl.store(last + row, token.to(tl.int64))
    tl.store(following + row, position + accepted)
    tl.store(outcome + 2 * index, accepted + 1)
    tl.store(outcome + 2 * index + 1, most.to(tl.int32))


@triton.jit(do_not_specialize=["length"], do_not_specialize_on_alignment=["rows", "starts"])
def follow_kernel(
    rows, starts, positions, tokens, tokens_row, length, drawn, following, ends, TILE: tl.constexpr
):  # fmt: skip
    """TILE tokens of one row; the first such program does what there is one of for the row."""
    index = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    row = tl.load(rows + index)
    start, end = tl.load(starts + index), tl.load(starts + index + 1)
    token = start + tile * TILE + tl.arange(0, TILE)
    inside = token < end
    position = tl.load(positions + token, mask=inside, other=0) + 1
    known = inside & (row >= 0) & (position < length)
    word = tl.load(tokens + tl.maximum(row, 0) * tokens_row + position, mask=known, other=0)
    tl.store(following + token, word.to(tl.int64), mask=inside)
    if tile == 0:
        there = (row >= 0) & (start < end)
        first = tl.load(positions + start, mask=there, other=0)
        last = tl.load(drawn + row, mask=there, other=0) - 1
        tl.store(ends + index, tl.where(there, start + last - first, 0))


def propose(rows: Tensor, starts: Tensor, room: Tensor, inputs: StepInputs, state: DraftState, lookup: Lookup) -> None:
    """Write drafts into the ids of `inputs`, which are made, and `drafted` of the state.

    rows     int64 [n]; those below 0 have none
    starts   int64 [n + 1]: where the tokens of each begin
    room     int64 [n]: how many drafts each may have; a row with any has 1 + room tokens
    """
    n = len(rows)
    _check({"rows": rows, "starts": starts[:n], "room": room}, n)
    if n:
        propose_kernel[(n,)](
            rows, starts, room, inputs.ids, inputs.positions, state.tokens, state.tokens.stride(0), state.drafted,
            SHORTEST=lookup.shortest, LONGEST=lookup.longest, DRAFTS=triton.next_power_of_2(lookup.drafts), TILE=TILE,
            num_warps=4,
        )  # fmt: skip


def verify(
    rows: Tensor,
    at: Tensor,
    drawn: Tensor,
    inputs: StepInputs,
    own: RowState,
    state: DraftState,
    outcome: Tensor,
) -> None:
    """Which of the tokens `drawn` count.

    rows      int64 [n]: whose they are, those of a row side by side, in the order of its tokens; below 0: nobody's
    at        int64 [n]: behind which token of the step each was drawn
    drawn     int32 [n]
    outcome   int32 [n or more, 2]: at each row's first, how many of its tokens count, and how many drafts it had
    """
    n = len(rows)
    _check({"rows": rows, "at": at}, n)
    if drawn.shape != (n,) or drawn.dtype != torch.int32:
        raise ValueError(f"drawn {drawn.dtype}{list(drawn.shape)} must be int32 [{n}]")
    if outcome.dtype != torch.int32 or outcome.shape[1:] != (2,) or len(outcome) < n or not outcome.is_contiguous():
        raise ValueError(f"outcome {outcome.dtype}{list(outcome.shape)} must be int32 [{n}, 2]")
    if n:
        verify_kernel[(n,)](
            rows, at, drawn, n, inputs.ids, inputs.positions, state.tokens, state.tokens.stride(0), state.drafted,
            own.last, own.drawn, outcome, num_warps=1,
        )  # fmt: skip


def follow(
    rows: Tensor,
    starts: Tensor,
    inputs: StepInputs,
    own: RowState,
    state: DraftState,
    following: Tensor,
    ends: Tensor,
    longest: int,
) -> None:
    """What stands behind the tokens of a step that is verified, of which `inputs` are.

    rows        int64 [n]; those below 0 have none
    starts      int64 [n + 1]: where the tokens of each begin
    following   int64 [tokens]: of each token the next one; of one that does not count any word
    ends        int64 [n]: where the last token of each row is that counts, and whose next one is known
    longest     at least the tokens that any of the rows has
    """
    n, tokens = len(rows), len(inputs.ids)
    _check({"rows": rows, "starts": starts[:n], "ends": ends}, n)
    _check({"following": following, "positions": inputs.positions}, tokens)
    if n:
        follow_kernel[(n, triton.cdiv(longest, FOLLOWED))](
            rows, starts, inputs.positions, state.tokens, state.tokens.stride(0), state.tokens.shape[1], own.drawn,
            following, ends, TILE=FOLLOWED, num_warps=1,
        )  # fmt: skip


def _check(vectors: dict[str, Tensor], size: int) -> None:
    for name, values in vectors.items():
        if values.dtype != torch.int64 or values.shape != (size,) or not values.is_contiguous():
            raise ValueError(f"{name} {values.dtype}{list(values.shape)} must be int64 [{size}]")
