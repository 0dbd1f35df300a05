"""Tokens that a grammar leaves no choice of: a row goes on behind them in one step, without drawing any.

Nothing else could be drawn there (grammar/matchers.py: forced), so that the text is that of a run without them, greedy
or drawn. They are computed as a prompt's tokens are, and no logits are made of their positions unless the request wants
logprobs: then these are the model's own, as of any token.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..cpu.batch import counting
from ..logits.processors import LogitsProcessors
from .verifier import DraftOutcome, Ints, Tokens


class Jumps(NamedTuple):
    """Of a step's rows."""

    counts: Ints  # of each row
    tokens: np.ndarray  # int32, of all rows

    def places(self, firsts: Ints) -> Ints:
        """From each of `firsts` on so many numbers, one after the other."""
        return counting(firsts, self.counts)

    def joined(
        self, samples: np.ndarray, drawn: np.ndarray, outcome: DraftOutcome | None
    ) -> tuple[np.ndarray, DraftOutcome]:
        """(the tokens of rows that sample, these and then those that were drawn, and how many each has)."""
        counts = self.counts[samples]
        own = np.ones_like(counts) if outcome is None else outcome.drawn
        drafted = np.zeros_like(counts) if outcome is None else outcome.drafted
        total = own + counts
        tokens = np.empty(int(total.sum()), np.int32)
        is_forced = np.arange(len(tokens)) - np.repeat(np.cumsum(total) - total, total) < np.repeat(counts, total)
        tokens[is_forced], tokens[~is_forced] = self.tokens, drawn
        return tokens, DraftOutcome(total, drafted)  # none of these was a guess


def find_jumps(
    processors: LogitsProcessors, among: Ints, rows: Ints, known: Ints, room: Ints, tokens: Tokens
) -> Jumps | None:
    """Those of the rows `among` these that have room for some; they stand in `tokens` then, and count as drawn."""
    counts = np.zeros_like(rows)
    found: list[int] = []
    for index in among[room[among] > 0].tolist():
        row, start = int(rows[index]), int(known[index])
        own = processors.forced(row, int(room[index]))
        if own:
            tokens[row, start : start + len(own)] = own
            processors.advance(np.full(len(own), row), np.array(own))
            counts[index] = len(own)
            found += own
    return Jumps(counts, np.array(found, np.int32)) if found else None
