"""Where each row of the worker's batch stands in its grammar, and which tokens it may draw next.

A grammar is compiled once; a row takes a copy. Of a row that is placed again (its worker died, or it was preempted) the
tokens that it has drawn are replayed.

Copies share the lexer, and with it its limits: where it fails in one row it has failed in all, and in every copy that
is taken later, though these may not say so and just allow less. So a matcher that fails is forgotten, and all its rows
go on with matchers of their own, brought to where they stood by all that they did: whether a row's grammar fails does
not depend on other rows. If its own one fails, the row has failed: it allows the end tokens alone, and whoever runs the
step is told by `failed`.

Masks of many rows are made by several threads, but only where their grammars are several: copies share the lexer's lock
too, and a mask takes it whole. (A trial, 32 rows and two cores: 0.63 of the time with grammars of their own, 1.06 with
copies of one.)

Knows grammars and tokens; neither tensors nor plans.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

from .vocabulary import limits

NOTHING = "no token is allowed, or one that was drawn before is not"
MANY = 9  # rows whose masks are worth threads
CACHED = 32  # compiled grammars that are kept for the next request

log = logging.getLogger("worker")


class GrammarRow:
    """A row with a grammar."""

    def __init__(self, grammar: str, shared: LLMatcher, drawn: Sequence[int]) -> None:
        self.grammar = grammar
        self.shared: LLMatcher | None = shared  # the compiled one that it is a copy of; None: it has its own
        self.matcher: LLMatcher | None = shared.deep_copy()  # None: it failed
        self.drawn = list(drawn)  # the answer so far
        self.looks_ahead = True  # until that fails


class Matchers:
    """The rows that have a grammar."""

    def __init__(self, lltokenizer: LLTokenizer, vocab_size: int, threads: int = 1) -> None:
        """`vocab_size`: of the logits; `threads`: how many make masks."""
        self._threads = threads
        self._executor: LLExecutor | None = None  # from the first step on that is worth it
        self.lltokenizer = lltokenizer
        self.width = -(-vocab_size // 32)
        self._rows: dict[int, GrammarRow] = {}
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._ends = np.zeros(-(-lltokenizer.vocab_size // 32), np.int32)  # bits of the end tokens
        for token in lltokenizer.eos_tokens:
            self._ends.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def place(self, row: int, grammar: str, generated: Sequence[int] = ()) -> None:
        """A sequence takes a row; `generated` are the tokens of its answer so far."""
        placed = self._rows[row] = GrammarRow(grammar, self._compiled_of(grammar), generated)
        assert placed.matcher is not None
        known = placed.matcher.try_consume_tokens(placed.drawn)
        if placed.matcher.is_error() or (known < len(placed.drawn) and not placed.matcher.is_stopped()):
            self._has_failed(row, placed)

    def allows(self, grammar: str, tokens: Sequence[int]) -> bool:
        """May an answer begin like this?"""
        matcher = self._compile(grammar)
        known = matcher.try_consume_tokens(list(tokens))
        if not matcher.is_error() and (known == len(tokens) or matcher.is_stopped()):
            return True
        return self._replayed(grammar, tokens) is not None

    def drop(self, row: int) -> None:
        """The row has no grammar any more."""
        self._rows.pop(row, None)

    def fill(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of `rows` have a grammar (their indices), and a bit for each word that these may draw: int32 [n, w]."""
        chosen = [index for index, row in enumerate(rows.tolist()) if row in self._rows] if self._rows else []
        indices = np.array(chosen, np.int64)
        bits = np.zeros((indices.size, self._ends.size), np.int32)
        own = rows[indices].tolist()
        if not self._fill_side_by_side(own, bits):
            for place, row in enumerate(own):
                self._fill_row(row, bits, place)
        return indices, np.ascontiguousarray(bits[:, : self.width])

    def failed(self, rows: np.ndarray) -> np.ndarray:
        """Those of `rows` whose grammar has failed: int32."""
        found = [row for row in rows.tolist() if row in self._rows and self._rows[row].matcher is None]
        return np.array(found, np.int32)

    def _fill_side_by_side(self, rows: list[int], bits: np.ndarray) -> bool:
        """By threads, if that pays; whether all are made. Where a matcher fails they are not: what others that share it
        allow may be too little, and who has failed is done with."""
        placed = [self._rows[row] for row in rows]
        if self._threads == 1 or len(rows) < MANY or len({id(one.shared or one) for one in placed}) == 1:
            return False
        at_work: list[tuple[LLMatcher, int]] = []
        for place, one in enumerate(placed):
            if one.matcher is None or _is_over(one.matcher):
                bits[place] = self._ends
            else:
                at_work.append((one.matcher, place))
        if at_work:
            self._executor = self._executor or LLExecutor(self._threads)
            fill_next_token_bitmask_par(self._executor, at_work, bits)
        failed = [(matcher, place) for matcher, place in at_work if matcher.is_error() or not bits[place].any()]
        for matcher, place in failed:
            if placed[place].matcher is matcher:  # no other one of its copies has failed before
                self._has_failed(rows[place], placed[place])
        return not failed

    def _fill_row(self, row: int, bits: np.ndarray, place: int) -> None:
        placed = self._rows[row]
        while placed.matcher is not None and not _is_over(placed.matcher):
            fill_next_token_bitmask(placed.matcher, bits, place)
            if not placed.matcher.is_error() and bits[place].any():
                return
            self._has_failed(row, placed)
        bits[place] = self._ends

    def forced(self, row: int, most: int) -> list[int]:
        """The row's next tokens that the grammar leaves no choice of, so many at most: each is the only one that a mask
        would allow behind those before it.
        """
        placed = self._rows.get(row)
        if placed is None or placed.matcher is None or not placed.looks_ahead or _is_over(placed.matcher):
            return []
        ahead, found = placed.matcher.deep_copy(), list[int]()
        while len(found) < most and (next_ones := ahead.compute_ff_tokens()) and ahead.consume_token(next_ones[0]):
            found.append(next_ones[0])
        if ahead.is_error():  # the row itself may never come so far
            placed.looks_ahead = False
            if placed.shared is not None:
                self._has_failed(row, placed)
            else:
                placed.matcher = self._replayed(placed.grammar, placed.drawn)
            return []
        return found

    def advance(self, row: int, token: int) -> None:
        """The row has drawn a token. Whatever is drawn behind the end is none of the grammar's."""
        placed = self._rows.get(row)
        if placed is None or placed.matcher is None or _is_over(placed.matcher):
            return
        placed.drawn.append(token)
        if not placed.matcher.consume_token(token):
            self._has_failed(row, placed)

    def _has_failed(self, row: int, placed: GrammarRow) -> None:
        """Its matcher has: all that share that one get others. One that was its own was the last try."""
        assert placed.matcher is not None
        reason, shared = placed.matcher.get_error(), placed.shared
        placed.matcher = None
        if shared is not None:
            if self._compiled.get(placed.grammar) is shared:
                del self._compiled[placed.grammar]
            for other in [one for one in self._rows.values() if one.shared is shared]:
                other.shared, other.matcher = None, self._replayed(other.grammar, other.drawn)
        if placed.matcher is None:
            log.error("the grammar of row %d failed: %s", row, reason or NOTHING)

    def _replayed(self, grammar: str, drawn: Sequence[int]) -> LLMatcher | None:
        """A matcher of its own behind these tokens, each allowed by the mask before it; None if one is not."""
        matcher = self._compile(grammar)
        bits = np.zeros((1, self._ends.size), np.int32)
        for token in drawn:
            if _is_over(matcher):
                break
            fill_next_token_bitmask(matcher, bits, 0)  # the lexer's work of a step is bounded: it is done in steps
            if matcher.is_error() or not matcher.consume_token(token):
                return None
        return None if matcher.is_error() else matcher

    def _compiled_of(self, grammar: str) -> LLMatcher:
        """One at the start, which stays as it is, but for the lexer's tables that its copies have built."""
        found = self._compiled.get(grammar)
        if found is None:
            found = self._compiled[grammar] = self._compile(grammar)
            if len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return found

    def _compile(self, grammar: str) -> LLMatcher:
        return LLMatcher(self.lltokenizer, grammar, limits=limits(), log_level=0)


def _is_over(matcher: LLMatcher) -> bool:
    """Its text has come to its end: nothing behind it is the grammar's. One that has failed is not."""
    return matcher.is_stopped() and not matcher.is_error()
