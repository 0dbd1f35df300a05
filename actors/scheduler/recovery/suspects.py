"""Sequences that were part of the step at which a worker died: one of them may be why.

A sequence is suspect until the tokens that were being computed then, and some behind them, have been computed (some,
since what kills when it is decoded may pass as part of a longer piece). Who is suspect of two deaths is
tried alone, so that nobody else dies with it; if the worker dies again, it was that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DEATHS_BEFORE_TRIAL = 2
MARGIN = 16  # tokens behind those


@dataclass
class Suspicion:
    """How often a worker died on a sequence, and how many of its tokens must be computed to clear it."""

    deaths: int = 0
    position: int = 0


class Suspects:
    """All suspicions, by ref."""

    def __init__(self) -> None:
        self._found: dict[int, Suspicion] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def blame(self, step: Iterable[tuple[int, int]]) -> list[int]:
        """A worker died at this step, of (ref, position that it would have reached). Returns who is convicted."""
        part = list(step)
        for ref, position in part:
            suspicion = self._found.setdefault(ref, Suspicion())
            suspicion.deaths += 1
            suspicion.position = max(suspicion.position, position + MARGIN)
        if len(part) == 1 and self._found[part[0][0]].deaths > DEATHS_BEFORE_TRIAL:
            return [part[0][0]]
        return []

    def clear(self, ref: int, computed: int) -> bool:
        """So many tokens of it are computed; is it cleared by that?"""
        cleared = ref in self._found and computed >= self._found[ref].position
        if cleared:
            del self._found[ref]
        return cleared

    def adopt(self, ref: int, deaths: int, position: int) -> None:
        """Another engine's workers died on it."""
        self._found[ref] = Suspicion(deaths, position)

    def deaths(self, ref: int) -> int:
        """Of which it is suspect."""
        return self._found[ref].deaths if ref in self._found else 0

    def forget(self, ref: int) -> None:
        """It has ended."""
        self._found.pop(ref, None)

    def refs(self) -> list[int]:
        return list(self._found)

    def on_trial(self) -> int | None:
        """Who is to run alone now."""
        return next((ref for ref, found in self._found.items() if found.deaths >= DEATHS_BEFORE_TRIAL), None)
