"""Mirostat against llama.cpp's formulas as plain loops, token by token; and what a successor goes on with."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from actorserve.actors.protocol.request import Rendition, Sampling
from actorserve.actors.worker.logits.mirostat import Mirostat
from actorserve.actors.worker.logits.processors import LogitsProcessors
from actorserve.shm.layout import make_ref
from actorserve.shm.table.mirostat import MirostatStates

WORDS, TAU, ETA = 300, 3.0, 0.4
NEVER = float("-inf")


def asking(version: int, temperature: float = 0.8, tau: float = TAU) -> Sampling:
    return Sampling(0, temperature=temperature, mirostat=version, mirostat_tau=tau, mirostat_eta=ETA)


class Reference:
    """llama_sampler_mirostat and llama_sampler_mirostat_v2 behind a temperature: shares in descending order."""

    def __init__(self, version: int, temperature: float, tau: float) -> None:
        self.version, self.temperature, self.tau, self.mu = version, temperature, tau, 2 * tau

    def left(self, logits: list[float]) -> dict[int, float]:
        """The words that may be drawn, with their shares."""
        best = max(logits)
        weights = [math.exp((one - best) / self.temperature) if one > NEVER else 0.0 for one in logits]
        total = sum(weights)
        order = sorted((word for word in range(len(logits)) if weights[word]), key=lambda word: -weights[word])
        shares = [weights[word] / total for word in order]
        count = self._first(shares, len(logits)) if self.version == 1 else self._second(shares)
        total = sum(shares[:count])
        return {word: share / total for word, share in zip(order[:count], shares, strict=False)}

    def _first(self, shares: list[float], words: int) -> int:
        top = min(100, len(shares))
        if top < 2:
            return 1
        both = [(math.log((i + 2) / (i + 1)), math.log(shares[i] / shares[i + 1])) for i in range(top - 1)]
        s_hat = sum(t * b for t, b in both) / sum(t * t for t, _ in both)
        epsilon = s_hat - 1
        k = ((epsilon * 2**self.mu) / (1 - words**-epsilon)) ** (1 / s_hat)
        return max(1, min(len(shares), int(k)))

    def _second(self, shares: list[float]) -> int:
        return max(1, next((i for i, share in enumerate(shares) if -math.log2(share) > self.mu), len(shares)))

    def drawn(self, share: float) -> None:
        self.mu -= ETA * (-math.log2(share) - self.tau)


def kept(row: Mirostat, logits: torch.Tensor) -> set[int]:
    left = logits.clone()
    row.truncate(left)
    words = torch.nonzero(left > NEVER)[:, 0].tolist()
    assert torch.equal(left[words], logits[words]), "what stays is as it was"
    return set(words)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.8])
@pytest.mark.parametrize("tau", [0.0, 1.0, 3.0, 6.0])
def test_each_token_is_drawn_of_what_llamacpp_leaves(version: int, temperature: float, tau: float) -> None:
    rng = random.Random(7)
    own, theirs = Mirostat(asking(version, temperature, tau), None, 0, 0), Reference(version, temperature, tau)
    sizes = set()
    for step in range(60):
        logits = torch.tensor([rng.gauss(0, 0.5 + step % 5) for _ in range(WORDS)])
        if step % 7 == 3:
            logits[torch.tensor(rng.sample(range(WORDS), WORDS - 1 - step % 4))] = NEVER  # by a grammar
        left = theirs.left(logits.tolist())
        assert kept(own, logits) == left.keys(), step
        token = rng.choices(list(left), list(left.values()))[0]
        own.add(token)
        theirs.drawn(left[token])
        assert own._mu == pytest.approx(theirs.mu, abs=1e-6)
        sizes.add(len(left))
    assert len(sizes) > 3 or tau == 0.0


@pytest.mark.parametrize("logits", [[0.0] * 5, [NEVER] * 5, [1.0, NEVER, NEVER, NEVER, NEVER], [math.nan] * 5])
@pytest.mark.parametrize("version", [1, 2])
def test_rows_that_leave_no_choice_or_are_all_alike(version: int, logits: list[float]) -> None:
    row, given = Mirostat(asking(version), None, 0, 0), torch.tensor(logits)
    row.truncate(given)
    assert bool((given > NEVER).any()) == (logits[0] > NEVER)
    row.add(0)
    assert math.isfinite(row._mu)


@pytest.mark.parametrize("version", [1, 2])
def test_a_successor_goes_on_where_the_log_ends(version: int) -> None:
    """Wherever that is among the last tokens, and whatever stood in the slot before."""
    ref, prompt = make_ref(2, 3), 70
    states = MirostatStates(MirostatStates.create(4), 4)
    before = Mirostat(asking(version), states, make_ref(1, 3), prompt)
    own = Mirostat(asking(version), states, ref, prompt)
    generator = torch.Generator().manual_seed(3)
    logits = [torch.randn(WORDS, generator=generator) * 3 for _ in range(20)]
    left = []
    for step, each in enumerate(logits):
        before.truncate(each.clone())
        before.add(int(each.argmax()))
        left.append(kept(own, each))
        token = sorted(left[-1])[step % len(left[-1])]
        own.add(token)
    for begun in (0, 1, 17, 19):
        successor = Mirostat(asking(version), states, ref, prompt + begun)
        assert kept(successor, logits[begun]) == left[begun]


def test_it_comes_behind_all_that_changes_logits() -> None:
    """Beside a row that asks for nothing; what it has drawn is told to it."""
    states = MirostatStates(MirostatStates.create(2), 2)
    processors, ref = LogitsProcessors(2, WORDS), make_ref(1, 1)
    processors.mirostat = states
    sampling = Sampling(0, temperature=1.0, mirostat=2, mirostat_tau=0.5, logit_bias=[(5, 50.0)])
    processors.place(1, sampling, Rendition(), np.array([1, 2]), [], (ref, 2))
    logits, rows = torch.zeros(2, WORDS), np.array([0, 1])
    processors.apply(logits, rows)
    assert (logits[0] == 0).all() and torch.nonzero(logits[1] > NEVER)[:, 0].tolist() == [5]
    assert states.read(ref, 3) is None
    processors.advance(rows, np.array([7, 5]))
    assert states.read(ref, 3) == pytest.approx(1.0 + 0.1 * 0.5)
