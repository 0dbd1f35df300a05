"""When the next step is planned: so early that the worker never waits, so late that whoever comes is part of it.

A plan that is made while the step before it has just begun leaves out all who come until that one ends. Where steps are
short nobody sees that, and the worker would wait if a plan came late. Where they are long (models on a CPU, prompts)
the plan waits until most of the running step is over, by what such steps took lately. Of a pipeline it waits only when
each stage has a step.

Requests that come at once to a server that has nothing to do share their first step: the first of them waits for the
others, for a small share of what the shortest step takes, counted from the last that came.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..scheduler import Scheduler

SHORT_S = 0.02  # a step of which the next one is planned at once
EARLY = 0.75  # of a long step is over when the next one is planned
GATHERING_S = 0.05  # a step for whose sake one may wait a millisecond for others
GATHER = 0.02  # of a step may pass from one arrival to the next ...
GATHER_ALL = 0.2  # ... and since the first one


class PlanTiming:
    """Watches a scheduler; `clock` counts seconds."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._running = (0, 0)  # epoch and number of the step
        self._due = 0.0  # when the next one is planned
        self._arrivals = 0  # how many there had been at the last one
        self._first: float | None = None  # when the first of those who gather was there
        self._last = 0.0

    def hold_s(self) -> float:
        """So long there is better no plan; 0 if it is time for one."""
        if self._scheduler.in_flight:
            self._first = None
            return self._until_most_is_over()
        return self._until_all_are_there()

    def _until_most_is_over(self) -> float:
        scheduler, now = self._scheduler, self._clock()
        if scheduler.fills_pipeline():
            return 0.0
        number = (scheduler.epoch, scheduler.step - len(scheduler.in_flight))
        if number != self._running:
            self._running, step = number, scheduler.in_flight[0]
            expected = scheduler.chunk_size.expected(step.decoding, step.tokens - step.decoding)
            self._due = now + EARLY * expected if expected > SHORT_S else now
        return max(0.0, self._due - now)

    def _until_all_are_there(self) -> float:
        scheduler = self._scheduler
        shortest = scheduler.chunk_size.expected(1, 0)
        if shortest < GATHERING_S or len(scheduler.batch) or not len(scheduler.waiting):
            self._first = None
            return 0.0
        now = self._clock()
        if self._first is None:
            self._first = self._last = now
        elif scheduler.lifecycle.arrivals != self._arrivals:
            self._last = now
        self._arrivals = scheduler.lifecycle.arrivals
        return max(0.0, min(self._last + GATHER * shortest, self._first + GATHER_ALL * shortest) - now)
