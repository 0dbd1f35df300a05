"""When requests are sent: seconds after the start, one for each request, drawn from a seed.

The gaps of `gamma` have the mean 1/rate and the shape `burstiness`: 1 is a Poisson process, less comes in bursts, more
is more even, and without end it would be `fixed`.
"""

from __future__ import annotations

import math

import numpy as np

PROCESSES = ("gamma", "poisson", "fixed")


def arrivals(count: int, rate: float, burstiness: float = 1.0, process: str = "gamma", seed: int = 0) -> list[float]:
    """The first request comes at 0; all do if the rate is infinite."""
    if rate <= 0 or math.isnan(rate):
        raise ValueError(f"the request rate must be over 0, or inf, not {rate}")
    if burstiness <= 0:
        raise ValueError(f"the burstiness must be over 0, not {burstiness}")
    if math.isinf(rate):
        return [0.0] * count
    random = np.random.default_rng(seed)
    if process == "fixed":
        gaps = np.full(count, 1.0 / rate)
    elif process in PROCESSES:
        shape = 1.0 if process == "poisson" else burstiness
        gaps = random.gamma(shape, 1.0 / (rate * shape), count)
    else:
        raise ValueError(f"no arrival process {process!r}: {', '.join(PROCESSES)}")
    gaps[:1] = 0.0
    found: list[float] = np.cumsum(gaps).tolist()
    return found
