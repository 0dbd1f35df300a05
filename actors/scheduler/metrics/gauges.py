"""The scheduler's words on the board: how it stands, and what it and its predecessors have counted."""

from __future__ import annotations

import time

from actorserve.shm.board.board import BoardWriter

from ...protocol.messages import Finish
from ...telemetry.gauges import SCHEDULER_KEPT
from ...telemetry.gauges import SchedulerGauge as Gauge
from ..scheduler import Scheduler

LATE_S = 0.02  # the others of who runs on and on may be so old
STEPS, GENERATED, PLANNED = int(Gauge.STEPS), int(Gauge.GENERATED), int(Gauge.PLANNED)


class GaugeWriter:
    """Writes what has changed, since a turn is short. Counts go on from what stands on the board at the start."""

    def __init__(self, scheduler: Scheduler, status: BoardWriter, before: list[int]) -> None:
        """`before`: all gauges as the predecessor left them."""
        self._scheduler = scheduler
        self._status = status
        self._base = [before[gauge] if gauge in SCHEDULER_KEPT else 0 for gauge in Gauge]
        self._shown = [0] * len(Gauge)  # without the base
        self._at = (0, 0, 0)  # when all were written: epoch, who has a row, who has come
        self._due = 0.0

    def write_progress(self) -> None:
        """What each step moves, and all the others if somebody has come, has ended or moved, or not long after."""
        scheduler, lifecycle = self._scheduler, self._scheduler.lifecycle
        at = scheduler.epoch, scheduler.batch.version, lifecycle.arrivals
        if at != self._at or lifecycle.ended or not scheduler.in_flight or time.monotonic() > self._due:
            self.write()
            self._at, self._due = at, time.monotonic() + LATE_S
            return
        for number, value in (
            (STEPS, scheduler.step),
            (GENERATED, scheduler.results.generated),
            (PLANNED, scheduler.planned),
        ):
            self._status.set_gauge(number, self._base[number] + value)
            self._shown[number] = value

    def write(self) -> None:
        """As things stand now."""
        now = self._now()
        if now == self._shown:
            return
        for number, value in enumerate(now):
            if value != self._shown[number]:
                self._status.set_gauge(number, self._base[number] + value)
        self._shown = now

    def _now(self) -> list[int]:
        """This life's figures, in the order of SchedulerGauge."""
        scheduler, stats, lifecycle = self._scheduler, self._scheduler.stats, self._scheduler.lifecycle
        ends, planner, prefix, pool = stats.ends, scheduler.planner, scheduler.prefix, scheduler.pool
        return [
            len(scheduler.batch),
            len(scheduler.waiting),
            pool.count,
            pool.free,
            scheduler.preemptions + planner.memory.preemptions,
            scheduler.queries + prefix.queries,
            scheduler.hits + prefix.hits,
            scheduler.step,
            scheduler.results.generated,
            lifecycle.prompted,
            lifecycle.rejected,
            lifecycle.finished,
            scheduler.planned,
            ends[Finish.STOP] + ends[Finish.STOP_STRING],
            ends[Finish.LENGTH],
            ends[Finish.ABORT],
            ends[Finish.ERROR] + ends[Finish.GRAMMAR] + ends[Finish.MEDIA] + ends[Finish.ADAPTER] + ends[Finish.PLUGIN],
            stats.survived_scheduler,
            stats.survived_worker,
            *scheduler.speculation.counts(),
            scheduler.prefix_resets,
            scheduler.snapshots + prefix.snapshots.made_count,
            *((0, 0, 0) if scheduler.tiers is None else scheduler.tiers.counts()),
            *(0, 0),  # a link's
            scheduler.waiting.num_prompt_tokens,
            scheduler.speculation.forced_tokens,
        ]
