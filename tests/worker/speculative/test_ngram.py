"""Drafts of what stood behind the same words before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actorserve.actors.worker.speculative.ngram import NgramProposer

from .work import work_of


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], [3, 4, 1, 2, 3]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4, 1]),  # the last time, not the first
        ([9, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2], [5, 8, 1, 2, 6]),  # the longest ending, though another came later
        ([1, 2, 3, 4, 5], []),
        ([7, 7, 7, 7], [7, 7, 7, 7, 7]),
        ([1, 2, 1, 2, 1, 2], [1, 2, 1, 2, 1]),
        ([3, 4, 3], []),  # one token is too short
        ([4], []),
        ([4, 4], []),
    ],
)
def test_what_is_looked_up(tokens: list[int], expected: list[int]) -> None:
    lines = np.zeros((2, 32), np.int32)
    lines[1, : len(tokens)] = tokens
    one = np.array([1])
    work = work_of(one, np.array([len(tokens) - 1]), one, np.array([5]))
    drafted = NgramProposer(2, 4).propose(work, lines)
    assert lines[1, len(tokens) : len(tokens) + int(drafted[0])].tolist() == expected


def test_a_lookup_finds_what_a_slow_one_finds() -> None:
    random = np.random.default_rng(3)

    def slow(line: list[int], shortest: int, longest: int) -> int:
        for length in range(longest, shortest - 1, -1):
            for end in range(len(line) - 1, length - 1, -1):
                if line[end - length : end] == line[len(line) - length :]:
                    return end
        return 0

    for _ in range(2000):
        line = random.integers(0, random.integers(2, 9), random.integers(1, 40)).astype(np.int32)
        shortest = int(random.integers(1, 4))
        longest = shortest + int(random.integers(0, 3))
        assert NgramProposer(shortest, longest).find(line) == slow(line.tolist(), shortest, longest)


class Counted(np.ndarray):
    """Knows how often it, or what was made of it, was read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        Counted.reads += 1
        return super().__getitem__(index)


def test_looking_up_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is read as a whole, a few times for each length, and not token by token."""
    monkeypatch.setattr(Counted, "reads", 0)
    line = np.random.default_rng(1).integers(0, 30, 8192).astype(np.int32)
    assert NgramProposer(2, 4).find(line.view(Counted)) == NgramProposer(2, 4).find(line) > 0
    assert 0 < Counted.reads < 30
