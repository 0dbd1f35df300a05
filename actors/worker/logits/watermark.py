"""A watermark in a row's answer: words of a green list, which the words before it choose, are made likelier.

Kirchenbauer et al. 2023 ("A Watermark for Large Language Models"), with the arithmetic of transformers, whose
WatermarkDetector finds it in the tokens alone: `lefthash` lets the last token choose the list; `selfhash` asks of each
of the likeliest words whether it is in the list that it chooses itself, with the tokens before it. The bias is added
behind the temperature, as there, and before top-k, top-p and min-p.
"""

from __future__ import annotations

from functools import cache, lru_cache
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from ...protocol.request import Sampling
from ...protocol.sampling.fields import WatermarkingConfig

TABLE_SIZE = 1_000_003  # of numbers that tokens are hashed to
CANDIDATES = 40  # words that selfhash asks
MOST_TABLES = 16  # that are kept, of 4 MB each: clients choose the keys
SEEDS = 2**64 - 1
MOST_KNOWN = 1 << 14  # words that are known to be in their lists or not: 3 MB, for all rows


class Watermark:
    """Of one row."""

    def __init__(self, config: WatermarkingConfig, sampling: Sampling, prompt: list[int], words: int) -> None:
        self._config = config
        self._bias = config.bias * (sampling.temperature or 1.0)
        self._before = prompt[-config.context_width :]
        self._words, self._size = words, int(words * config.greenlist_ratio)
        self._random = _generator()
        self._table: Tensor | None = None  # of selfhash, while it is kept

    def apply(self, logits: Tensor, answer: list[int]) -> None:
        """Change the row's logits [words] in place, of the word that comes behind `answer`."""
        width = self._config.context_width
        recent = (self._before + answer[-width:])[-width:]
        if len(recent) < width:
            return
        own = self._config.seeding_scheme == "selfhash"
        green = self._self_chosen(recent, logits) if own else self._green(recent[-1])
        logits[green] += self._bias

    def _self_chosen(self, recent: list[int], logits: Tensor) -> Tensor:
        key, size = self._config.hashing_key, self._size
        if self._table is None:
            self._table = _table_of(key)
        likeliest = _likeliest(logits)
        context = torch.tensor(recent[1:], dtype=torch.int64).expand(len(likeliest), -1)
        seeds = _hashed(key, self._table, torch.cat([context, likeliest[:, None]], 1)).tolist()
        words = likeliest.tolist()
        chosen = [word for word, seed in zip(words, seeds, strict=True) if _is_green(word, seed, self._words, size)]
        if key not in _tables:
            self._table = None  # it was for this step alone
        return torch.tensor(chosen, dtype=torch.int64)

    def _green(self, last: int) -> Tensor:
        """The list that this token chooses."""
        self._random.manual_seed(self._config.hashing_key * last % SEEDS)
        return torch.randperm(self._words, generator=self._random)[: self._size]


def _likeliest(logits: Tensor) -> Tensor:
    """Words. Which of those that are as likely as the last of them is told by sorting all: transformers does so."""
    found = logits.topk(min(CANDIDATES + 1, len(logits)))
    if len(found.values) > CANDIDATES and found.values[-1] == found.values[-2] > -torch.inf:
        return logits.sort(descending=True).indices[:CANDIDATES]
    return found.indices[:CANDIDATES]


def _hashed(key: int, table: Tensor, contexts: Tensor) -> Tensor:
    """The seeds of contexts [words, width]: 64 bits that wrap around, as the detector's do."""
    hashed = table[contexts % TABLE_SIZE].long() + 1
    return (key * hashed * hashed[:, -1:]).amin(1)


@lru_cache(MOST_KNOWN)
def _is_green(word: int, seed: int, words: int, size: int) -> bool:
    """Is it among the first `size` of the permutation of `words` that torch makes of this seed?

    At its turn each place is swapped with one at or behind it, and is not touched again: so only the first `size` turns
    count, and of these the word is followed alone.
    """
    source = _source()
    source.seed(seed % SEEDS % 2**32)  # torch takes no more of it, either
    turns = np.arange(size, dtype=np.uint32)
    to = source.randint(0, 2**32, size, np.uint32) % (words - turns) + turns
    turn, place = 0, word  # where the word is before that turn
    while not (to[turn : place + 1] == place).any():
        if place >= size:
            return False
        turn, place = place + 1, int(to[place])
    return True


@cache
def _source() -> np.random.RandomState:
    """It draws as torch does, and is one for all: making one takes as long as thousands of draws."""
    return np.random.RandomState(0)


def _generator() -> torch.Generator:
    """One of its own, without the part of torch that its class needs, whose import would stop a step for others."""
    made: torch.Generator = torch.default_generator.clone_state()
    return made


_tables: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # of the keys that rows have: one takes milliseconds


def _table_of(key: int) -> Tensor:
    """Whoever asks keeps it, where it is among `_tables`: if those are too many it is made anew in each step."""
    found = _tables.get(key)
    if found is None:
        found = torch.randperm(TABLE_SIZE, generator=_generator().manual_seed(key)).to(torch.int32)
        if len(_tables) < MOST_TABLES:
            _tables[key] = found
    return found
