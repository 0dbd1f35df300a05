"""DRY ("don't repeat yourself"): words that would go on with a repetition are made less likely.

By llama.cpp's rules. Where the end of the text, n tokens of it, has come before, multiplier · base ** (n - allowed
length) is taken from the logit of the word that followed there, if n is at least the allowed length; of several such
places the longest counts. A repetition does not reach back over a sequence breaker, and a word that holds one is left
alone. Breakers are looked for in the bytes of the tokens, so it does not matter how one is cut into tokens. Of more
than MOST_WORDS words those of the longest repetitions count: for so many a row has room on a device.

What a row keeps follows from its tokens. A step costs a few passes over the tokens that are looked back on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ...protocol.request import Sampling

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
MOST_EXPONENT = 88.7228391  # log of the largest float32: what a power may come to
LARGEST = 1e30  # penalty: no word is drawn with it, and a logit is a number still
MOST_WORDS = 1024
NO_WORDS = np.empty(0, np.int64), np.empty(0)


class Dry:
    """Of one row."""

    def __init__(self, sampling: Sampling, tokens: list[int], bytes_of: Callable[[int], bytes]) -> None:
        """`bytes_of`: a token's own."""
        self._sampling, self._bytes_of = sampling, bytes_of
        self._breakers = [text.encode() for text in sampling.dry_sequence_breakers]
        self._kept = max(map(len, self._breakers), default=1) - 1  # bytes in which a breaker may have begun
        self._size = len(tokens)
        self._tokens = np.array(tokens, np.int64)
        self._lengths = np.array(_repeated(tokens), np.int64)  # up to each token: how much of the text's end it repeats
        words = [bytes_of(token) for token in tokens]
        text = b"".join(words)
        self._behind = self._size  # the last breaker, so many tokens
        if end := self._last_end(text):
            self._behind -= int(np.cumsum([len(word) for word in words]).searchsorted(end)) + 1
        self._tail = text[max(0, len(text) - self._kept) :]

    def add(self, token: int) -> None:
        """The text has one more token."""
        size = self._size
        if size == len(self._tokens):
            more = np.zeros(max(size, 64), np.int64)
            self._tokens, self._lengths = (np.concatenate([one, more]) for one in (self._tokens, self._lengths))
        places = np.flatnonzero(self._tokens[:size] == token)
        lengths = np.where(places > 0, self._lengths[places - 1], 0) + 1
        self._lengths[:size] = 0
        self._lengths[places] = lengths
        self._tokens[size] = token
        self._size += 1
        text = self._tail + self._bytes_of(token)
        self._behind = 0 if self._last_end(text) > len(self._tail) else self._behind + 1
        self._tail = text[max(0, len(text) - self._kept) :]

    def apply(self, logits: Tensor) -> None:
        """Change the row's logits [words] in place."""
        words, penalties = self.penalties()
        if words.size:
            logits[torch.from_numpy(words)] -= torch.from_numpy(penalties).to(logits.dtype)

    def penalties(self) -> tuple[Ints, np.ndarray]:
        """Of which words' logits something is taken, each named once, and how much."""
        allowed, last = self._sampling.dry_allowed_length, self._sampling.dry_penalty_last_n
        seen = self._size if last < 0 else min(last, self._size)
        longest = min(seen, self._behind)
        if seen <= allowed or longest < allowed:
            return NO_WORDS
        begin = self._size - seen
        places = np.flatnonzero(self._lengths[begin : self._size - 1] >= allowed)
        lengths = np.minimum(self._lengths[begin + places], places + 1)
        places, lengths = places[lengths >= allowed], lengths[lengths >= allowed]
        words, which = np.unique(self._tokens[begin + 1 + places], return_inverse=True)
        found = np.zeros(len(words), np.int64)
        np.maximum.at(found, which, np.minimum(lengths, longest))
        kept = [index for index, word in enumerate(words.tolist()) if not self._breaks(word)]
        if len(kept) > MOST_WORDS:
            kept = sorted(kept, key=lambda index: -found[index])[:MOST_WORDS]
        return words[kept], self._of_lengths(found[kept])

    def _of_lengths(self, lengths: Ints) -> np.ndarray:
        base = self._sampling.dry_base
        exponents = lengths - self._sampling.dry_allowed_length
        if base > 1:
            exponents = np.minimum(exponents, int(MOST_EXPONENT / math.log(base)))
        penalties: np.ndarray = np.minimum(self._sampling.dry_multiplier * float(base) ** exponents, LARGEST)
        return penalties

    def _breaks(self, word: int) -> bool:
        own = self._bytes_of(word)
        return any(breaker in own for breaker in self._breakers)

    def _last_end(self, text: bytes) -> int:
        """Where the last of the breakers ends; 0 if there is none."""
        return max((text.rfind(one) + len(one) for one in self._breakers if one in text), default=0)


def _repeated(tokens: list[int]) -> list[int]:
    """Of each token but the last: how many up to it are those that the text ends with. By the Z-algorithm, backwards:
    as many comparisons as tokens, or twice that.
    """
    text, size = tokens[::-1], len(tokens)
    found = [0] * size
    begin = end = 0  # of the repetition that reaches furthest
    for at in range(1, size):
        length = min(end - at, found[at - begin]) if at < end else 0
        while at + length < size and text[length] == text[at + length]:
            length += 1
        found[at] = length
        if at + length > end:
            begin, end = at, at + length
    return found[::-1]
