"""Which cases of a test are quick, where there are too many to try each time; the others are slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations, product
from typing import Any

import pytest

SLOW_S = 900  # some take minutes alone; beside busy neighbours other tests' 300 would not do


def slow(*values: Any) -> list[Any]:
    """These values of a parameter; a tuple is of several."""
    return [pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow) for one in values]


def give_time(items: Iterable[pytest.Item]) -> None:
    """What is slow may take longer than other tests, also where nothing about it says so."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))


def pairwise(*axes: Iterable[Any], where: Callable[..., bool] = lambda *values: True) -> list[Any]:
    """All combinations of one value of each axis that may be, for parametrize; slow but for some in which each value of
    an axis meets each of every other. Of two axes that would be all: there each value is in one quick case at least.
    """
    values = [list(axis) for axis in axes]

    def of(case: tuple[int, ...]) -> list[Any]:
        return [axis[at] for axis, at in zip(values, case, strict=True)]

    cases = [case for case in product(*(range(len(axis)) for axis in values)) if where(*of(case))]
    quick = _cover(cases, size=min(2, len(values) - 1))
    return [pytest.param(*of(case), marks=() if case in quick else pytest.mark.slow) for case in cases]


def _cover(cases: list[tuple[int, ...]], size: int) -> set[tuple[int, ...]]:
    """Few of these, in which everything is that so many of their values make together. The next one has most of what
    is missing yet, and of such the values that were taken least.
    """
    made = {case: set(combinations(enumerate(case), size)) for case in cases}
    missing, taken = set().union(*made.values()), set()
    uses: Counter[tuple[int, int]] = Counter()
    while missing:
        best = max(cases, key=lambda case: (len(made[case] & missing), -sum(uses[one] for one in enumerate(case))))
        missing -= made[best]
        taken.add(best)
        uses.update(enumerate(best))
    return taken
