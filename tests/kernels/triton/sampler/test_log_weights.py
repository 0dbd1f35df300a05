"""What a device draws from, as it is told: the words and shares that a CPU draws from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ..test_gpu_sampling import DEVICE, draw, random_logits  # isort: skip  # before kernels

from actorserve.kernels.cpu import sampling as on_cpu
from actorserve.kernels.cpu.sampling import NEVER, Parameters
from actorserve.kernels.triton.sampler import log_weights
from actorserve.kernels.triton.sampler.log_weights import log_weights_
from tests.kernels.sampled_rows import mixed, parameters


def shares(logits: torch.Tensor, values: Parameters) -> torch.Tensor:
    found = logits.to(DEVICE, copy=True)
    log_weights_(found, values)
    return found.cpu().softmax(-1)


@pytest.mark.parametrize("words", [1, 2, 199, 3000])
def test_what_a_cpu_draws_from(words: int) -> None:
    """Filters of all kinds; the drawn word is among those that are told."""
    for seed in range(6):
        logits, values = random_logits(12, words, 1.0 + seed % 3), mixed(12, seed)
        found = shares(logits, values)
        torch.testing.assert_close(found, on_cpu.log_weights(logits.clone(), values).softmax(-1), atol=1e-4, rtol=1e-3)
        tokens, _ = draw(logits, values)
        assert (found.gather(1, torch.from_numpy(tokens).long()[:, None]) > 0).all()


def test_of_equal_words_the_first_stay() -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 1.0, 3.0, 0.0]])
    kept = shares(logits, parameters(1, top_p=0.85)) > 0
    assert kept.tolist() == [[True, True, False, False, True, False]]


def test_logits_that_are_none() -> None:
    """A masked word is not told; without a finite best word the first of the largest is all there is."""
    masked = torch.tensor([[NEVER, 2.0, 1.0], [float("nan"), 1.0, 0.0], [NEVER] * 3, [0.0, float("inf"), float("inf")]])
    found = shares(masked, parameters(4, temperature=0.5))
    assert (found > 0).tolist() == [
        [False, True, True],
        [False, True, True],
        [True, False, False],
        [False, True, False],
    ]
    assert torch.equal(found[2:], torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]))


def test_rows_that_draw_alike_are_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they stand, and whatever their seeds; each has what it has alone."""
    values, logits = mixed(4, 3), random_logits(12, 199, 2.0)
    kinds = np.array([0, 1, 0, 2, 3, 0, 1, 1, 2, 0, 3, 0])
    own = values.of(kinds)._replace(
        xtc_probability=np.zeros(12, np.float32), seed=np.arange(12, dtype=np.uint64), position=np.arange(12)
    )
    alone = torch.cat([shares(logits[row : row + 1], own.of(np.array([row]))) for row in range(12)])
    sizes: list[int] = []
    made = log_weights._of_rows

    def counted(some: torch.Tensor, parameters: Parameters, excludes: bool) -> torch.Tensor:
        sizes.append(len(some))
        return made(some, parameters, excludes)

    monkeypatch.setattr(log_weights, "_of_rows", counted)
    torch.testing.assert_close(shares(logits, own), alone)
    assert sorted(sizes) == [2, 2, 3, 5]
