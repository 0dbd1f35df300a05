"""What a step takes, by the tokens in it: fitted to those that came back."""

from __future__ import annotations

import numpy as np

MEMORY = 0.98  # what a step weighs in the fit when the next one has come
SPREAD = 0.05  # of the steps' sizes (deviation / mean), from which their times say what a token costs


class StepCost:
    """Seconds of a step by its tokens: a straight line through the last steps."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)  # of 1, x, y, x², xy
        self.base = self.token = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """One more step."""
        weight, x, y = self._sums[:3]
        if weight > 10 and seconds > 5 * y / weight:  # the machine did something else
            return
        self._sums *= MEMORY
        self._sums += (1, tokens, seconds, tokens * tokens, tokens * seconds)
        weight, x, y, xx, xy = self._sums.tolist()
        variance = xx / weight - (x / weight) ** 2
        if variance > (SPREAD * x / weight) ** 2:
            slope = (xy / weight - x * y / weight**2) / variance
            self.token = min(max(slope, 0.0), y / x)
        self.base = max(0.0, (y - self.token * x) / weight)

    def share(self, rows: int) -> float:
        """The share of drafts that has to be accepted in steps of so many rows."""
        whole = self.base + self.token * rows
        return self.token * rows / whole if whole > 0 else 0.0
