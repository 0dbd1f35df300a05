"""Words without a bit are -inf, all others as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actorserve.kernels.triton.grammar_mask import apply_mask


def reference(logits: torch.Tensor, bits: np.ndarray, rows: list[int]) -> torch.Tensor:
    """One bit after another."""
    masked = logits.clone()
    for at, row in enumerate(rows):
        for word in range(logits.shape[1]):
            if not int(bits[at, word // 32]) >> (word % 32) & 1:
                masked[row, word] = float("-inf")
    return masked


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 100, 256])
@pytest.mark.parametrize("rows", [None, [0, 1, 2, 3], [2], [3, 0], [3, 1, 0, 2], []])
def test_as_the_reference(vocabulary: int, rows: list[int] | None) -> None:
    chance = np.random.default_rng(vocabulary)
    logits = torch.from_numpy(chance.normal(size=(4, vocabulary)).astype(np.float32))
    chosen = list(range(4)) if rows is None else rows
    shape = (len(chosen), -(-vocabulary // 32))
    bits = chance.integers(-(1 << 31), 1 << 31, shape).astype(np.int32)
    expected = reference(logits, bits, chosen)
    apply_mask(logits, bits, None if rows is None else np.array(rows, np.int64))
    assert torch.equal(logits, expected)


def test_every_bit_of_a_number() -> None:
    """The highest is a number's sign."""
    for word in (0, 1, 31, 32, 63):
        bits = np.zeros((1, 2), np.uint32)
        bits[0, word // 32] = 1 << (word % 32)
        logits = torch.zeros(1, 64)
        apply_mask(logits, bits.view(np.int32))
        assert torch.nonzero(logits[0] == 0).flatten().tolist() == [word]


def test_bits_that_do_not_fit_are_refused() -> None:
    logits = torch.zeros(2, 64)
    for bits in (np.zeros((2, 3), np.int32), np.zeros((1, 2), np.int32), np.zeros((2, 2), np.int64)):
        with pytest.raises(ValueError, match="do not fit 2 rows of 64 words"):
            apply_mask(logits, bits)
    assert not logits.any()
