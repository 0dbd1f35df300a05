"""The gaps between requests have the mean and the spread that they are said to have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from actorserve.actors.bench.load.arrivals import arrivals

COUNT = 40_000


def gaps(**options: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    found: np.ndarray[Any, np.dtype[np.float64]] = np.diff(np.array(arrivals(COUNT, **options)))
    assert (found >= 0).all()
    return found


@pytest.mark.parametrize("rate", [0.5, 20.0])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_has_the_mean_of_the_rate_and_the_spread_of_the_burstiness(rate: float, burstiness: float) -> None:
    found = gaps(rate=rate, burstiness=burstiness, seed=1)
    assert found.mean() * rate == pytest.approx(1.0, abs=0.05)
    assert found.std() * rate == pytest.approx(1.0 / math.sqrt(burstiness), rel=0.05)


def test_poisson_is_memoryless_whatever_the_burstiness() -> None:
    found = gaps(rate=3.0, process="poisson", burstiness=9.0, seed=2)
    assert (found > 1 / 3).mean() == pytest.approx(math.exp(-1), abs=0.01)
    late = found[found > 0.2] - 0.2
    assert late.mean() == pytest.approx(found.mean(), rel=0.05)


def test_fixed_is_even_and_inf_is_at_once() -> None:
    assert arrivals(5, 4.0, process="fixed") == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert arrivals(3, math.inf) == [0.0, 0.0, 0.0]


def test_a_seed_is_a_series() -> None:
    assert arrivals(9, 2.0, seed=5) == arrivals(9, 2.0, seed=5)
    assert arrivals(9, 2.0, seed=5) != arrivals(9, 2.0, seed=6)


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"rate": math.nan}, {"rate": 1.0, "burstiness": 0.0}])
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be over 0"):
        arrivals(3, **wrong)
