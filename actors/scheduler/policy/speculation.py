"""Speculative decoding as the scheduler sees it: room for drafts, what came of them, whether they pay.

Only the worker has a row's last tokens (the scheduler plans up to two steps ahead of what it knows), so the worker
proposes drafts and verifies them in the same forward pass. A plan gives a row room for some: its count goes beyond
`num_known_tokens`, and its blocks hold as many tokens. The worker moves the row on by as many tokens as it draws,
1 … 1 + room.

The scheduler plans the next steps by upper bounds: it counts as if all drafts of the steps in flight were accepted.
`num_computed_tokens` and `num_known_tokens` of a row are then too large by the same number, so that a row that decodes
is seen to decode, its blocks always suffice, and its length limit is never passed; the worker, which has the exact
numbers, does what is left of the row's count. When a step comes back, both are lowered by what was not drawn.
`num_confirmed_tokens` is exact always, and with it all that goes by it: the KV map, what a successor takes over,
the blocks that the prefix cache is offered.
- A rejected draft leaves KV behind `num_confirmed_tokens`. It is written again before anything reads it, as the next
  token of the row goes there; a block is offered only when it lies before `num_confirmed_tokens` as a whole.
- The room is at most half of what the limit leaves, so that the next step ahead can be planned as well.
- Room never preempts anybody: blocks for it are taken only while every running row would get one, and tokens of the
  budget only where no decode, prompt or waiting sequence wants them.
- Tokens behind an end token are cut off before anything is counted.
- Which token stands at a position does not depend on drafts (see worker/speculative/verifier.py), so that deaths and
  preemption are what they were: what was in flight is lost, and drawn again alike.

Whether they pay at some number of rows is found by trial (draft_trials.py); where they don't, nobody has room. Whether
those of a row do goes by the tokens in steps, which take about a + b·x seconds (fitted to the last ones). With n rows a
draft costs b, and one that is accepted saves what a row's token costs, a / n + b. So the share b·n / (a + b·n) has to
be accepted; the worker is told that share with each step, and gives up drafts of a row below it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...protocol.step import StepDone
from ..batch import Ints
from ..sequence import Sequence
from .draft_trials import DraftTrials
from .step_cost import StepCost

POSITIONS = 8  # at which accepted drafts are counted one by one
TOGETHER = 8  # steps that are alike are accounted for at once
EXACT = 8  # rows up to which each number of them has its own trials; beyond, four numbers each time they double


class Speculation:
    """The policy and its counts; `most` drafts a row at a time, 0 for none at all."""

    def __init__(self, most: int, alone: bool = False) -> None:
        """`alone`: only for a row that runs alone."""
        self.most = most
        self.alone = alone
        self.cost = StepCost()
        self.drafts = self.draft_tokens = self.accepted_tokens = 0
        self.forced_tokens = 0  # that grammars left no choice of, and nobody drew
        self.accepted_at: Ints = np.zeros(POSITIONS, np.int64)
        self._trials: dict[int, DraftTrials] = {}  # by sizes of rows
        self._alike, self._seconds = (0, False), list[float]()  # the last steps: (rows, on), and what each took

    def num_draft_tokens(self, rows: int) -> int:
        """Drafts that a row of the next step may have."""
        return self.most if self.most and self._may(rows) and self._at(rows).on() else 0

    def _may(self, rows: int) -> bool:
        return rows == 1 or not self.alone

    def observe(self, rows: int, on: bool, drawn: Ints, drafted: Ints, seconds: float) -> None:
        """A step of rows that decode has come back; `on`: what `num_draft_tokens` said of it."""
        if not len(drafted) and len(drawn) == rows:
            self.observe_without(rows, on, seconds)
            return
        self._account()
        self.cost.observe(rows + num_beside(drawn, drafted), seconds)
        if len(drawn) == rows and seconds > 0 and self._may(rows):  # a prompt's piece draws none
            self._at(rows).observe(on, int(drawn.sum()), seconds, bool(drafted.any()))

    def observe_without(self, rows: int, on: bool, seconds: float) -> None:
        """The same of a step in which each row drew one token and none had drafts.

        Between two steps the caches hold other things: one at a time this takes as long as all that a step is for.
        """
        if self._alike != (rows, on):
            self._account()
            self._alike = rows, on
        self._seconds.append(seconds)
        if len(self._seconds) == TOGETHER:
            self._account()

    def _account(self) -> None:
        rows, on = self._alike
        for seconds in self._seconds:
            self.cost.observe(rows, seconds)
            if seconds > 0 and self._may(rows):
                self._at(rows).observe(on, rows, seconds, False)
        self._seconds.clear()

    def _at(self, rows: int) -> DraftTrials:
        """The trials of about so many rows; they begin with what the nearest ones found."""
        size = rows if rows <= EXACT else EXACT + int(4 * math.log2(rows / EXACT))
        if (found := self._trials.get(size)) is None:
            near = min(self._trials, key=lambda other: abs(other - size), default=None)
            found = self._trials[size] = DraftTrials(True if near is None else self._trials[near].usual)
        return found

    def count(self, drawn: Ints, drafted: Ints) -> None:
        """A step has come back, in which rows had drafts, or tokens without a choice."""
        tried = drafted > 0
        accepted = drawn[tried] - 1
        self.forced_tokens += int((drawn[~tried] - 1).sum())  # beside a row's next token there is nothing else
        self.drafts += int(tried.sum())
        self.draft_tokens += int(drafted.sum())
        self.accepted_tokens += int(accepted.sum())
        self.accepted_at += (accepted[:, None] > np.arange(len(self.accepted_at))).sum(0)

    def counts(self) -> list[int]:
        """Drafts, their tokens, those accepted, and of these how many at each of the first POSITIONS."""
        return [self.drafts, self.draft_tokens, self.accepted_tokens, *self.accepted_at.tolist()]


def num_beside(drawn: Ints, drafted: Ints) -> int:
    """How many tokens rows computed beside their next ones: drafts, or such as there was no choice of."""
    return int(np.where(drafted > 0, drafted, drawn - 1).sum()) if len(drafted) else 0


class SampledTokens:
    """What each sampling row of a step has drawn: `counts` tokens of the flat `tokens`, from `firsts` on."""

    def __init__(self, done: StepDone, rows: int) -> None:
        self.tokens = done.tokens
        self.speculated = done.had_drafts
        given = done.num_drawn if self.speculated else np.ones(rows, np.int64)
        self.drafted: Ints = done.num_drafted
        self.counts: Ints = given
        assert len(given) == rows, f"step {done.step}: {len(given)} rows drew tokens, {rows} were to"
        assert int(given.sum()) == len(self.tokens), f"step {done.step}: {len(self.tokens)} tokens for {rows} rows"
        self.firsts: Ints = np.cumsum(given) - given

    def of(self, index: int) -> list[int]:
        """The tokens of one row."""
        first = int(self.firsts[index])
        tokens: list[int] = self.tokens[first : first + int(self.counts[index])].tolist()
        return tokens

    def cut(self, refs: list[int], sequences: Mapping[int, Sequence]) -> None:
        """Nothing follows a token that ends its sequence."""
        for index in np.flatnonzero(self.counts > 1).tolist():
            sequence = sequences.get(refs[index])
            if sequence is None or sequence.ends.isdisjoint(tokens := self.of(index)):
                continue
            self.counts[index] = 1 + next(at for at, token in enumerate(tokens) if token in sequence.ends)

    def some(self, chosen: np.ndarray) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], Ints]:
        """(the tokens of the chosen rows, how many of them are each row's)."""
        counts = self.counts[chosen]
        if not self.speculated:
            return self.tokens[chosen], counts
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.tokens[np.repeat(self.firsts[chosen], counts) + within], counts
