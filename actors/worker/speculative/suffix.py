"""Drafts of what followed the longest ending of a row that came before: in its own text, or in earlier answers.

As suffix decoding (Oliaro et al., 2024) has it, but that no tree is kept: of the places where the last tokens stood the
longest match is found by comparing, and the tree of what followed them is walked by counting, token by token, among
these places. It goes the way of the most, and ends where its probability (how many of them went that way) falls below
`min_token_prob`, or behind `max_spec_factor` times as many tokens as have matched.

Earlier answers lie one behind the other in two halves of an area: one is filled, and forgets all when it is begun anew.
Each half knows by two tokens where they stood last. Nothing else grows: `MOST_TOKENS` and `SHOWN` bound both. A row's
answer is remembered when another sequence takes the row; members of a group run the same steps, and remember the same.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .verifier import DraftBatch, Ints, Tokens

MOST_TOKENS = 1 << 18  # of earlier answers
SHOWN = 16  # places of two tokens that are looked at, the last ones ...
LOOKED_AT = 64  # ... and in a row's own text
END = -1  # behind each answer


class SuffixRules(NamedTuple):
    """By vLLM's names."""

    max_tree_depth: int = 24  # tokens that are compared
    max_cached_requests: int = 10_000
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1


class SuffixDrafts(NamedTuple):
    """The drafts of one source."""

    tokens: list[int]
    score: float  # how many of them are expected to be right


NOTHING = SuffixDrafts([], 0.0)


class Half:
    """Some earlier answers."""

    def __init__(self, tokens: int) -> None:
        self.text = np.full(tokens, END, np.int32)
        self.size = self.answers = 0
        self.places: dict[int, deque[int]] = {}  # of what follows two tokens

    def add(self, answer: np.ndarray) -> None:
        """One that fits."""
        start = self.size
        self.text[start : start + len(answer)] = answer
        self.size, self.answers = start + len(answer) + 1, self.answers + 1
        self.text[self.size - 1] = END
        line = answer.tolist()
        for place, pair in enumerate(pairwise(line), start + 2):
            self.places.setdefault(_key(*pair), deque(maxlen=SHOWN)).append(place)


def _key(first: int, second: int) -> int:
    return first << 32 | second


class EarlierAnswers:
    """The last ones, in two halves."""

    def __init__(self, rules: SuffixRules, tokens: int = MOST_TOKENS) -> None:
        self._room, self._most = tokens // 2, -(-rules.max_cached_requests // 2)
        self.halves = [Half(self._room)]

    def add(self, answer: np.ndarray) -> None:
        """Remember it, and forget the oldest where there is no room."""
        if len(answer) < 3 or not self._most:
            return
        answer = answer[-self._room + 1 :]
        last = self.halves[-1]
        if last.size + len(answer) + 1 > self._room or last.answers >= self._most:
            self.halves = [last, last := Half(self._room)]
        last.add(answer)


class SuffixProposer:
    """The proposer of `--speculative-config '{"method": "suffix"}'`."""

    follows = True

    def __init__(self, rules: SuffixRules, rows: int, remembers: bool) -> None:
        """`remembers`: one request's answer may be another's drafts."""
        self.rules = rules
        self.earlier = EarlierAnswers(rules) if remembers else None
        self._first, self._known = np.zeros(rows, np.int64), np.zeros(rows, np.int64)  # of what the answer has
        self._in_prompt = np.ones(rows, np.bool_)
        self._tokens: Tokens | None = None

    def place(self, row: int, computed: int) -> None:
        """Another sequence takes a row: what was said in it, of which the tokens still stand there, is remembered."""
        first, known = int(self._first[row]), int(self._known[row])
        if self.earlier is not None and self._tokens is not None and known > first:
            self.earlier.add(self._tokens[row, first:known].copy())
        self._first[row] = self._known[row] = 0
        self._in_prompt[row] = True

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        """See Proposer."""
        self._tokens = tokens
        known = work.starts + work.pending
        self._known[work.rows] = known
        if self._in_prompt[work.rows].any():
            begun = work.rows[self._in_prompt[work.rows]]
            self._first[begun] = self._known[begun]
            self._in_prompt[work.rows[work.pending == 1]] = False
        drafted = np.zeros(len(work.rows), np.int64)
        for index in np.flatnonzero(work.room).tolist():
            size, line = int(known[index]), tokens[work.rows[index]]
            own = self.find(line[:size], int(work.room[index]))
            line[size : size + len(own)] = own
            drafted[index] = len(own)
        return drafted

    def find(self, line: np.ndarray, room: int) -> list[int]:
        """Drafts behind these tokens: those of the source that promises more."""
        if len(line) < 3:
            return []
        best, own = NOTHING, (line[1:-1] == line[-1]).nonzero()[0]
        if len(own):
            twice = own[line[own] == line[-2]]
            best = self._walk(line, line, (twice if len(twice) else own)[-LOOKED_AT:] + 2, room)
        if self.earlier is not None:
            pair = _key(int(line[-2]), int(line[-1]))
            for half in self.earlier.halves:
                if (places := half.places.get(pair)) is not None:
                    found = self._walk(line, half.text, np.array(places), room)
                    best = found if found.score > best.score else best
        return best.tokens

    def _walk(self, line: np.ndarray, text: np.ndarray, places: np.ndarray, room: int) -> SuffixDrafts:
        """Among places of `text`, each behind a token that is the line's last."""
        back = np.arange(1, min(self.rules.max_tree_depth, len(line) - 1))
        at = places[:, None] - 1 - back
        same = (at >= 0) & (text[np.maximum(at, 0)] == line[-1 - back])
        lengths = 1 + np.where(same.all(1), len(back), same.argmin(1)) if len(back) else np.ones_like(places)
        length = int(lengths.max())
        most = min(room, int(length * self.rules.max_spec_factor))
        return self._follow(line, text, places[lengths == length][-SHOWN:], most) if most else NOTHING

    def _follow(self, line: np.ndarray, text: np.ndarray, places: np.ndarray, most: int) -> SuffixDrafts:
        """What stood there, as far as most of them agree; in a circle where the line itself ends."""
        at = places[:, None] + np.arange(most)
        if text is line:
            at = np.where(at < len(line), at, places[:, None] + (at - places[:, None]) % (len(line) - places[:, None]))
        ways = text[np.minimum(at, len(text) - 1)].tolist()
        if len(ways) == 1:
            (way,) = ways
            tokens = way[: way.index(END)] if END in way else way
            return SuffixDrafts(tokens, float(len(tokens)))
        tokens, score, among = list[int](), 0.0, len(ways)
        for step in range(most):
            (word, count), *_ = Counter(way[step] for way in ways if way[step] != END).most_common(1) or [(END, 0)]
            if not count or count / among < self.rules.min_token_prob:
                break
            tokens.append(word)
            score += count / among
            ways = [way for way in ways if way[step] == word]
        return SuffixDrafts(tokens, score)
