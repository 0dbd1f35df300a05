"""Penalties and logprobs against transformers and against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from actorserve.kernels.cpu.penalties import Penalties, log_sums, penalize, top_logprobs

WORDS = 97


def batch(rows: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random logits, words of prompts, counts of answers."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, WORDS, generator=random) * 3
    prompted = torch.rand(rows, WORDS, generator=random) < 0.3
    counts = torch.randint(-6, 5, (rows, WORDS), generator=random, dtype=torch.int32).clamp_(min=0)
    return logits, prompted, counts


def of(repetition: list[float], frequency: list[float], presence: list[float]) -> Penalties:
    return Penalties(*(np.array(values, np.float32) for values in (repetition, frequency, presence)))


@pytest.mark.parametrize("repetition", [0.5, 1.0, 1.3, 2.0])
def test_repetition_is_that_of_transformers(repetition: float) -> None:
    logits, prompted, counts = batch(4)
    ours = logits.clone()
    penalize(ours, prompted, counts, of([repetition] * 4, [0] * 4, [0] * 4))
    for row in range(4):
        seen = torch.nonzero(prompted[row] | (counts[row] > 0))[:, 0]
        theirs = RepetitionPenaltyLogitsProcessor(repetition)(seen[None], logits[row : row + 1].clone())[0]
        torch.testing.assert_close(ours[row], theirs, rtol=1e-6, atol=1e-6)


def test_each_row_has_its_own_penalties() -> None:
    logits, prompted, counts = batch(3, 2)
    ours = logits.clone()
    given = of([1.5, 1.0, 0.8], [0.3, -0.5, 0.0], [0.0, 1.2, -2.0])
    penalize(ours, prompted, counts, given)
    for row in range(3):
        for word in range(WORDS):
            x, times = logits[row, word].item(), counts[row, word].item()
            if prompted[row, word] or times:
                x = x / given.repetition[row] if x > 0 else x * given.repetition[row]
            x -= given.frequency[row] * times + given.presence[row] * (times > 0)
            assert ours[row, word].item() == pytest.approx(x, rel=1e-5, abs=1e-5)


def test_nothing_is_changed_by_what_is_off() -> None:
    logits, prompted, counts = batch(2, 3)
    ours = logits.clone()
    penalize(ours, prompted, counts, of([1.0] * 2, [0.0] * 2, [0.0] * 2))
    assert torch.equal(ours, logits)


@pytest.mark.parametrize("most", [0, 1, 5, 20])
def test_logprobs_are_those_of_a_loop(most: int) -> None:
    logits, _, _ = batch(5, 4)
    tokens = torch.tensor([0, 5, 96, 7, int(logits[4].argmax())])
    logprobs, words, rank = top_logprobs(logits, tokens, most, log_sums(logits))
    assert logprobs.shape == (5, 1 + most) and words.shape == (5, most)
    for row in range(5):
        values = logits[row].double()
        whole = math.log(sum(math.exp(value) for value in values.tolist()))
        order = sorted(range(WORDS), key=lambda word: -values[word].item())
        assert words[row].tolist() == order[:most] and rank[row] == order.index(int(tokens[row])) + 1
        expected = [values[word].item() - whole for word in [int(tokens[row]), *order[:most]]]
        assert logprobs[row].tolist() == pytest.approx(expected, abs=1e-5)
