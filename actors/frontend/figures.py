"""What a frontend reads off the board: who is ready, and the figures of `/metrics`."""

from __future__ import annotations

import time
from collections.abc import Iterable

from actorserve.http.metrics import ActorFigures, EngineFigures, Exporter
from actorserve.shm.board import ActorState

from ..gauges import SchedulerGauge
from ..runtime import Context


class Figures:
    """The board, as the HTTP side asks for it."""

    def __init__(self, context: Context) -> None:
        self._board = context.board
        self._system = context.system
        self._exporter = Exporter(context.config.served_names()[0], self._engine, self._actors)

    def not_ready(self) -> list[str]:
        """The actors that are not READY, with their states."""
        states = ((actor.name, self._board.snapshot(actor.position).state) for actor in self._system.actors)
        return [f"{name}: {state.name.lower()}" for name, state in states if state is not ActorState.READY]

    def metrics(self) -> bytes:
        """Prometheus' text."""
        return self._exporter.text()

    def _engine(self) -> EngineFigures:
        words = self._board.gauges(self._system.by_name["scheduler"].position)
        return EngineFigures(
            running=words[SchedulerGauge.RUNNING],
            waiting=words[SchedulerGauge.WAITING],
            blocks_total=words[SchedulerGauge.BLOCKS_TOTAL],
            blocks_free=words[SchedulerGauge.BLOCKS_FREE],
            preemptions=words[SchedulerGauge.PREEMPTIONS],
            prefix_queries=words[SchedulerGauge.PREFIX_QUERIES],
            prefix_hits=words[SchedulerGauge.PREFIX_HITS],
            generated=words[SchedulerGauge.GENERATED],
            prompted=words[SchedulerGauge.PROMPTED],
            rejected=words[SchedulerGauge.REJECTED],
        )

    def _actors(self) -> Iterable[ActorFigures]:
        now = time.monotonic_ns()
        for actor in self._system.actors:
            seen = self._board.snapshot(actor.position)
            age = (now - seen.heartbeat_ns) / 1e9 if seen.heartbeat_ns else 0.0
            restarts, given_up = max(0, seen.incarnation - 1), self._board.given_up(actor.position)
            yield ActorFigures(actor.name, seen.state is ActorState.READY, restarts, age, given_up)
