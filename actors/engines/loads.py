"""Which engines can go on with requests, and how much each has to do: words on the board, so that nobody is asked."""

from __future__ import annotations

from typing import NamedTuple

from actorserve.shm.board.board import Board

from ..protocol.topology import System
from ..telemetry.gauges import SchedulerGauge

BLOCKS, PROMPTED = int(SchedulerGauge.BLOCKS_TOTAL), int(SchedulerGauge.PROMPTED)
RUNNING, WAITING = int(SchedulerGauge.RUNNING), int(SchedulerGauge.WAITING)


class Load(NamedTuple):
    """Sequences of one engine."""

    running: int
    waiting: int
    prompted: int  # tokens of all that have come, which tells that something came and went between two looks


class EngineLoads:
    """All engines of a model, by their numbers."""

    def __init__(self, board: Board, system: System, model: int = 0) -> None:
        self._board = board
        self.engines = system.models[model].engines
        self._schedulers = [actor.position for actor in system.of_kind("scheduler")]
        self._workers = [[actor.position for actor in system.workers_of(engine)] for engine in system.engines]

    def is_up(self, engine: int) -> bool:
        """Its scheduler has met the workers, and all of them live and are wanted. A moment later that may be over,
        which is no error: who gets what he cannot compute gives it away.
        """
        scheduler, ready = self._schedulers[engine], self._board.is_ready
        met = self._board.gauge(scheduler, BLOCKS) > 0
        return met and ready(scheduler) and all(map(ready, self._workers[engine])) and not self.is_parked(engine)

    def is_parked(self, engine: int) -> bool:
        """Are its workers not wanted, so that waiting for it may take for ever?"""
        return any(map(self._board.is_parked, self._workers[engine]))

    def is_leaving(self, engine: int) -> bool:
        """Its workers are not wanted, and its scheduler lives, and has not let go of them yet."""
        scheduler = self._schedulers[engine]
        met = self._board.gauge(scheduler, BLOCKS) > 0
        return met and self.is_parked(engine) and self._board.is_ready(scheduler)

    def load(self, engine: int) -> Load:
        """What it has to do, some milliseconds ago at most."""
        gauge, scheduler = self._board.gauge, self._schedulers[engine]
        return Load(gauge(scheduler, RUNNING), gauge(scheduler, WAITING), gauge(scheduler, PROMPTED))
