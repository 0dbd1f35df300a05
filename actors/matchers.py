"""Where each row of the worker's batch stands in its grammar, and which tokens it may draw next.

A grammar is compiled once; a row takes a copy. Of a row that is placed again (its worker died, or it was preempted) the
tokens that it has drawn are replayed. A matcher that fails allows the end tokens alone: its row's answer ends there.

Knows grammars and tokens; neither tensors nor plans.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask

from .grammar_words import limits

CACHED = 32  # compiled grammars that are kept for the next request

log = logging.getLogger("worker")


class Matchers:
    """The rows that have a grammar."""

    def __init__(self, lltokenizer: LLTokenizer, vocab_size: int) -> None:
        """`vocab_size`: of the logits."""
        self.lltokenizer = lltokenizer
        self.width = -(-vocab_size // 32)
        self._rows: dict[int, LLMatcher | None] = {}  # None: it failed
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._ends = np.zeros(-(-lltokenizer.vocab_size // 32), np.int32)  # bits of the end tokens
        for token in lltokenizer.eos_tokens:
            self._ends.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def place(self, row: int, grammar: str, generated: Sequence[int] = ()) -> None:
        """A sequence takes a row; `generated` are the tokens of its answer so far."""
        matcher = self._rows[row] = self._copy_of(grammar)
        known = matcher.try_consume_tokens(list(generated))
        if known < len(generated) and not matcher.is_stopped():
            self._give_up(row, f"token {known} of those drawn before is not allowed")
        elif matcher.is_error():
            self._give_up(row, matcher.get_error())

    def drop(self, row: int) -> None:
        """The row has no grammar any more."""
        self._rows.pop(row, None)

    def fill(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of `rows` have a grammar (their indices), and a bit for each word that these may draw: int32 [n, w]."""
        chosen = [index for index, row in enumerate(rows.tolist()) if row in self._rows] if self._rows else []
        indices = np.array(chosen, np.int64)
        bits = np.zeros((indices.size, self._ends.size), np.int32)
        for place, row in enumerate(rows[indices].tolist()):
            self._fill_row(row, bits, place)
        return indices, np.ascontiguousarray(bits[:, : self.width])

    def _fill_row(self, row: int, bits: np.ndarray, place: int) -> None:
        matcher = self._rows[row]
        if matcher is not None and not matcher.is_stopped():
            fill_next_token_bitmask(matcher, bits, place)
            if not matcher.is_error() and bits[place].any():
                return
            self._give_up(row, matcher.get_error() or "no token is allowed")
        bits[place] = self._ends

    def advance(self, row: int, token: int) -> None:
        """The row has drawn a token. Whatever is drawn behind the end is none of the grammar's."""
        matcher = self._rows.get(row)
        if matcher is not None and not matcher.is_stopped() and not matcher.consume_token(token):
            self._give_up(row, matcher.get_error())

    def _give_up(self, row: int, reason: str) -> None:
        log.error("the grammar of row %d failed, its answer ends: %s", row, reason)
        self._rows[row] = None

    def _copy_of(self, grammar: str) -> LLMatcher:
        """A matcher at the start. The compiled one stays as it is, but for the lexer's tables that it has built."""
        found = self._compiled.get(grammar)
        if found is None:
            found = LLMatcher(self.lltokenizer, grammar, limits=limits(), log_level=0)
            self._compiled[grammar] = found
            if len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return found.deep_copy()
