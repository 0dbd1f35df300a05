"""How many of the engines that Ray may keep are wanted: one more while prompts wait that those which are there will not
have computed soon, one less when the others would do for long. A wish is made at a time, and the next one when it has
come true.
"""

from __future__ import annotations

from dataclasses import dataclass

WAITS_S = 3.0  # for so long prompts have to wait
STEPS = 8  # of each engine, that what waits takes at least


@dataclass(frozen=True)
class DemandSample:
    """Of all engines at one moment."""

    up: int  # of Ray's
    others: int  # that are up, too: on the server's machine, or at addresses
    running: int  # sequences
    waiting_tokens: int  # of prompts


class Demand:
    """Between `least` and `most`. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, least: int, most: int, step_tokens: int, rows: int, idle_s: float, wanted: int = 0) -> None:
        """Of each engine: tokens of a step, rows. `wanted`: so many are there already."""
        self._least, self._most, self._step_tokens, self._rows = least, most, step_tokens, rows
        self._idle_s = idle_s
        self.wanted = min(most, max(least, wanted))
        self._waits_since: float | None = None
        self._idle_since: float | None = None

    def look(self, now: float, seen: DemandSample) -> int:
        """How many are wanted from now on."""
        waits = seen.waiting_tokens > STEPS * self._step_tokens * max(1, seen.up + seen.others)
        idles = not seen.waiting_tokens and seen.running <= self._rows * (self.wanted - 1 + seen.others) // 2
        self._waits_since = (self._waits_since or now) if waits else None
        self._idle_since = (self._idle_since or now) if idles else None
        if self._waits_since is not None and now - self._waits_since >= WAITS_S and seen.up >= self.wanted:
            self._become(self.wanted + 1)
        elif self._idle_since is not None and now - self._idle_since >= self._idle_s:
            self._become(self.wanted - 1)
        return self.wanted

    def _become(self, wanted: int) -> None:
        self.wanted = min(self._most, max(self._least, wanted))
        self._waits_since = self._idle_since = None
