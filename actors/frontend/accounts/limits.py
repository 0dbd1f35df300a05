"""What is left of a limit a minute, and when more will be: of what was used in each of the last seconds.

Seconds are those of CLOCK_MONOTONIC. A second counts as long as less than a minute may have gone by since its end, so
that in no minute, wherever it begins, there is more than the limit. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from actorserve.shm.accounts.layout import MINUTE


@dataclass(frozen=True)
class MinuteLimit:
    """One limit at one moment. `used`: (second, how much), oldest first; `running`: what will count soon."""

    limit: int
    used: list[tuple[int, int]]
    now: float
    running: int = 0

    @property
    def total(self) -> int:
        return sum(amount for _, amount in self.used) + self.running

    @property
    def left(self) -> int:
        return max(0, self.limit - self.total)

    def wait_s(self) -> int:
        """Whole seconds until there is room for one more; what runs may end at any time."""
        too_many = self.total - self.limit + 1
        for second, amount in self.used:
            too_many -= amount
            if too_many <= 0:
                return max(1, math.ceil(second + MINUTE + 1 - self.now))
        return 1

    def reset_s(self) -> int:
        """Until nothing of it is used, if nothing else is."""
        return max(0, math.ceil(self.used[-1][0] + MINUTE + 1 - self.now)) if self.used else 0

    def headers(self, what: str, taken: int = 0) -> dict[str, str]:
        """As OpenAI has them; `taken`: what this request takes beside what is counted."""
        return {
            f"x-ratelimit-limit-{what}": str(self.limit),
            f"x-ratelimit-remaining-{what}": str(max(0, self.left - taken)),
            f"x-ratelimit-reset-{what}": f"{self.reset_s()}s",
        }
