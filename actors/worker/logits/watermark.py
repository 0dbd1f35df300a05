"""A watermark in a row's answer: words of a green list, which the words before it choose, are made likelier.

Kirchenbauer et al. 2023 ("A Watermark for Large Language Models"), with the arithmetic of transformers, whose
WatermarkDetector finds it in the tokens alone: `lefthash` lets the last token choose the list; `selfhash` asks of each
of the likeliest words whether it is in the list that it chooses itself, with the tokens before it. The bias is added
behind the temperature, as there, and before top-k, top-p and min-p.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ...protocol.request import Sampling, WatermarkingConfig

TABLE_SIZE = 1_000_003  # of numbers that tokens are hashed to
CANDIDATES = 40  # words that selfhash asks
MOST_TABLES = 16  # that are kept, of 4 MB each: clients choose the keys
SEEDS = 2**64 - 1


class Watermark:
    """Of one row."""

    def __init__(self, config: WatermarkingConfig, sampling: Sampling, prompt: list[int], words: int) -> None:
        self._config = config
        self._bias = config.bias * (sampling.temperature or 1.0)
        self._before = prompt[-config.context_width :]
        self._words = words
        self._random = _generator()
        self._table: Tensor | None = None  # of selfhash, while it is kept

    def apply(self, logits: Tensor, answer: list[int]) -> None:
        """Change the row's logits [words] in place, of the word that comes behind `answer`."""
        width = self._config.context_width
        recent = (self._before + answer[-width:])[-width:]
        if len(recent) < width:
            return
        green = self._self_chosen(recent, logits) if self._config.seeding_scheme == "selfhash" else self._green(recent)
        logits[green] += self._bias

    def _self_chosen(self, recent: list[int], logits: Tensor) -> Tensor:
        key = self._config.hashing_key
        if self._table is None:
            self._table = _table_of(key)
        likeliest = logits.sort(descending=True).indices[:CANDIDATES].tolist()
        chosen = [word for word in likeliest if word in self._green([*recent, word])]
        if key not in _tables:
            self._table = None  # it was for this step alone
        return torch.tensor(chosen, dtype=torch.int64)

    def _green(self, tokens: list[int]) -> Tensor:
        """The list that these tokens choose."""
        self._random.manual_seed(self._seed(tokens) % SEEDS)
        size = int(self._words * self._config.greenlist_ratio)
        return torch.randperm(self._words, generator=self._random)[:size]

    def _seed(self, tokens: list[int]) -> int:
        key = self._config.hashing_key
        if (table := self._table) is None:
            return key * tokens[-1]
        context = torch.tensor(tokens[-self._config.context_width :])
        hashed, last = (table[at % TABLE_SIZE].long() + 1 for at in (context, context[-1]))
        return int((key * hashed * last).min())  # 64 bits that wrap around, as the detector's do


def _generator() -> torch.Generator:
    """One of its own, without the part of torch that its class needs, whose import would stop a step for others."""
    made: torch.Generator = torch.default_generator.clone_state()
    return made


_tables: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # of the keys that rows have: one takes milliseconds


def _table_of(key: int) -> Tensor:
    """Whoever asks keeps it, where it is among `_tables`: if those are too many it is made anew in each step, which
    takes less than the lists that the step makes with it.
    """
    found = _tables.get(key)
    if found is None:
        found = torch.randperm(TABLE_SIZE, generator=_generator().manual_seed(key)).to(torch.int32)
        if len(_tables) < MOST_TABLES:
            _tables[key] = found
    return found
