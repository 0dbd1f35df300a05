"""Histograms in shared memory: how many values were at most so large, and their sum. One writer, read by anyone.

Layout of a histogram, in words: one count for each bound (values up to and including it that no lower one counts), one
for what is above all bounds, then the sum; padded to cache lines, so that two writers never share one. Values are whole
numbers (ns, tokens). Nothing is ever set back: a successor goes on counting where its predecessor died, so that what is
exported never falls. A death between two stores leaves a value counted that is not in the sum; that is all it costs.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from .layout import CACHE_LINE, WORD_BYTES, check_place, whole
from .segment import Segment


def histogram_bytes(bounds: Sequence[int]) -> int:
    """Bytes of a histogram with these bounds."""
    return whole((len(bounds) + 2) * WORD_BYTES, CACHE_LINE)


@dataclass(frozen=True)
class Counted:
    """A histogram at one moment. `counts` has one more entry than there are bounds: what is above all of them."""

    counts: list[int]
    sum: int

    @property
    def total(self) -> int:
        """All values."""
        return sum(self.counts)

    def __add__(self, other: Counted) -> Counted:
        return Counted([a + b for a, b in zip(self.counts, other.counts, strict=True)], self.sum + other.sum)


class Histogram:
    """The histogram at `offset` of a segment; bounds rise, and are the same for all who look at it."""

    def __init__(self, segment: Segment, offset: int, bounds: Sequence[int]) -> None:
        check_place(segment.size, offset, histogram_bytes(bounds), f"histogram of {len(bounds)} bounds")
        if not bounds or bounds[0] < 0 or any(low >= high for low, high in itertools.pairwise(bounds)):
            raise ValueError("the bounds of a histogram are whole numbers that rise")
        self.bounds = list(bounds)
        self._words = segment.words
        self._first = offset // WORD_BYTES
        self._sum = self._first + len(bounds) + 1

    def observe(self, value: int, times: int = 1) -> None:
        """Count a value, so many times. The writer's alone."""
        words = self._words
        if value < 0:
            value = 0
        words[self._first + bisect_left(self.bounds, value)] += times
        words[self._sum] += value * times

    def read(self) -> Counted:
        """What was counted up to now."""
        return Counted(self._words[self._first : self._sum].tolist(), self._words[self._sum])
