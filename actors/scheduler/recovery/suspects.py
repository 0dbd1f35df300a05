"""Sequences that were part of the step at which a worker died, or that it could not compute: one of them may be why.

A sequence is suspect until the tokens that were being computed then, and some behind them, have been computed (some,
since what kills when it is decoded may pass as part of a longer piece). Who is suspect of two deaths is
tried alone, so that nobody else dies with it; if the worker dies again, it was that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..batch import RunningBatch
from ..planned_step import PlannedStep
from ..sequence import Sequence

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

    def blame(self, reached: Mapping[int, int]) -> list[int]:
        """A worker died as these refs were to reach these positions. Returns who is convicted."""
        for ref, position in reached.items():
            suspicion = self._found.setdefault(ref, Suspicion())
            suspicion.deaths += 1
            suspicion.position = max(suspicion.position, position + MARGIN)
        return [ref for ref in reached if len(reached) == 1 and self._found[ref].deaths > DEATHS_BEFORE_TRIAL]

    def clear(self, ref: int, computed: int) -> bool:
        """So many tokens of it are computed; is it cleared by that?"""
        cleared = ref in self._found and computed >= self._found[ref].position
        if cleared:
            del self._found[ref]
        return cleared

    def clear_computed(self, sequences: Mapping[int, Sequence], batch: RunningBatch) -> list[int]:
        """After a step: who is cleared by what of it is confirmed. Who has ended is forgotten."""
        cleared = []
        for ref in self.refs():
            sequence = sequences.get(ref)
            if sequence is None:
                self.forget(ref)
            elif sequence.row is not None and self.clear(ref, int(batch.num_confirmed_tokens[sequence.row])):
                cleared.append(ref)
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


def reached_by(batch: RunningBatch, steps: Iterable[PlannedStep]) -> dict[int, int]:
    """Who is part of these steps that are under way, by ref, and the position that each would have reached;
    likewise whose pictures they look at.
    """
    reached = dict[int, int]()
    for step in steps:
        alive = batch.still(step.rows, step.tickets)
        for row, count in zip(step.rows[alive].tolist(), step.counts[alive].tolist(), strict=True):
            ref = batch.at(row).ref
            reached[ref] = reached.get(ref, int(batch.num_confirmed_tokens[row])) + count
        for row, ticket in step.looking:
            if batch.ticket[row] == ticket:
                reached.setdefault(batch.at(row).ref, int(batch.num_confirmed_tokens[row]))
    return reached
