"""Mirostat (Basu et al. 2021, "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity"), as
llama.cpp has both of its versions: how surprising a token may be is steered so that texts have a certain perplexity.

With p the shares of all words at the row's temperature, and mu the state, at first twice `mirostat_tau`:
    2   words stay whose surprise -log2 p is no larger than mu, or else the likeliest
    1   with s the slope of log p over log rank, by the 100 likeliest, and e = s - 1, the k likeliest stay,
        k = (e · 2^mu / (1 - words^-e)) ^ (1 / s), at least 1
Of what stays a token is drawn, with the surprise S among these, and mu becomes mu - mirostat_eta · (S - mirostat_tau).
No other filter is heeded beside it; penalties, biases and grammars have changed the logits before.

The state stands in shared memory (shm/table/mirostat.py) before the token is told.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from actorserve.shm.table.mirostat import MirostatStates

from ...protocol.request import Sampling

LIKELIEST = 100  # of which the slope is reckoned
NEVER = float("-inf")


class Mirostat:
    """Of one row."""

    def __init__(self, sampling: Sampling, states: MirostatStates | None, ref: int, position: int) -> None:
        """`position`: where the next token will stand. Without `states` nobody goes on with it."""
        self._sampling, self._states, self._ref, self._position = sampling, states, ref, position
        found = None if states is None else states.read(ref, position)
        self._mu = 2 * sampling.mirostat_tau if found is None else found
        self._shares = np.empty(0)  # of what was left of the words last

    def truncate(self, logits: Tensor) -> None:
        """Leave what may be drawn of the row's logits [words], in place."""
        best = float(logits.amax())
        if not math.isfinite(best):  # the row is drawn greedily
            self._shares = np.empty(0)
            return
        weights = ((logits.double() - best) / self._sampling.temperature).exp_()
        shares = weights / weights.sum()
        if self._sampling.mirostat == 1:
            kept = torch.zeros_like(shares, dtype=torch.bool)
            kept[torch.topk(shares, self._number(shares)).indices] = True
        else:
            kept = -shares.log2() <= self._mu
            kept[shares.argmax()] = True
        logits.masked_fill_(~kept, NEVER)
        left = shares.masked_fill_(~kept, 0)
        self._shares = (left / left.sum()).numpy()

    def _number(self, shares: Tensor) -> int:
        """How many words version 1 leaves."""
        there = int((shares > 0).sum())
        top = torch.topk(shares, min(LIKELIEST, there)).values.log()
        if len(top) < 2:
            return 1
        ranks = torch.arange(1, len(top) + 1, dtype=torch.float64).log()
        steps = ranks[1:] - ranks[:-1]
        slope = float((steps * (top[:-1] - top[1:])).sum() / (steps * steps).sum())
        if slope <= 0:  # all are as likely
            return there
        excess, words = slope - 1, math.log(len(shares))
        factor = excess / -math.expm1(-excess * words) if excess else 1 / words
        exponent = (math.log(factor) + self._mu * math.log(2)) / slope
        return max(1, min(there, int(math.exp(min(exponent, math.log(there) + 1)))))

    def add(self, token: int) -> None:
        """It was drawn of what was left."""
        self._position += 1
        if self._shares.size:
            surprise = -math.log2(self._shares[token])
            self._mu -= self._sampling.mirostat_eta * (surprise - self._sampling.mirostat_tau)
        if self._states is not None:
            self._states.write(self._ref, self._position, self._mu)
