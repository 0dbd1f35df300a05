"""Drafts by looking back: what followed the last few tokens when they stood in the sequence before (prompt lookup).

The longest ending that came before counts, of `longest` tokens at most and `shortest` at least, and of its occurrences
the last one. What followed is continued in a circle where it reaches the end: a text that repeats itself goes on so.
Measured (one core of a Zen 4, µs for a row of 8k tokens): 4 where nothing matches, 16 in a circle of 40 words.
"""

from __future__ import annotations

import numpy as np

from .verifier import DraftBatch, Ints, Tokens


class NgramProposer:
    """The proposer of `--speculative-config '{"method": "ngram"}'`. It keeps nothing of its own."""

    follows = False

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest

    def place(self, row: int, computed: int) -> None:
        """Nothing to remember."""

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        """See Proposer."""
        drafted = np.zeros(len(work.rows), np.int64)
        for index in np.flatnonzero(work.room).tolist():
            known = int(work.starts[index] + work.pending[index])
            line = tokens[work.rows[index]]
            found = self.find(line[:known])
            if found:
                count = int(work.room[index])
                line[known : known + count] = line[found + np.arange(count) % (known - found)]
                drafted[index] = count
        return drafted

    def find(self, tokens: np.ndarray) -> int:
        """Where what followed begins; 0 if there is nothing to go by."""
        size = len(tokens)
        if size <= self.shortest:
            return 0
        ends = np.flatnonzero(tokens[self.shortest - 1 : -1] == tokens[-1]) + self.shortest - 1
        length = 1
        while ends.size and length < self.longest:
            longer = ends[(ends >= length) & (tokens[ends - length] == tokens[-1 - length])]
            if not longer.size:
                break
            ends = longer
            length += 1
        return int(ends[-1]) + 1 if ends.size and length >= self.shortest else 0
