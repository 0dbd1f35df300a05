"""The server as a service: what its manager is told, from the supervisor's own picture. Nothing is decided here.

READY comes with the supervisor's own `ready`, for which a token was generated. WATCHDOG is said only while every actor
is in order (supervisor/timeouts.py): a supervisor that cannot end or replace one falls silent, and the manager starts
all anew.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from ...telemetry.gauges import FrontendGauge, SchedulerGauge
from ..timeouts import is_in_order, stop_seconds
from .notify import MICROSECONDS, Manager

if TYPE_CHECKING:
    from ..supervisor import Supervisor

TELL_S = 1.0  # between two lines of status
EXTEND_S = 30.0  # for which the manager is to wait on, from each of them while the server starts
LONGEST_US = 1 << 62  # that a manager is told, of what takes as long as it does: systemd's words have 64 bits
LATE_S = 0.25  # of a look: the half of the period is not to be missed by one


class Service:
    """Look at the supervisor now and then, and tell the manager."""

    def __init__(self, supervisor: Supervisor, manager: Manager) -> None:
        self._supervisor = supervisor
        self._manager = manager
        self._told_at = 0.0
        self._beat_at = 0.0
        self._status = ""
        self._tokens = 0
        self._unheard = False  # the last message did not reach the manager

    def is_warm(self) -> bool:
        """Schedulers of models that are loaded at the start have met the workers that are wanted, or where all are
        elsewhere one engine is there; and the warm-up request was answered, if there is one.
        """
        system, board, loaded = self._supervisor.system, self._supervisor.memory.board, self._supervisor.memory.loaded
        first = [one for one in system.of_kind("scheduler") if one.model in loaded]
        wanted = [one for one in first if not self._supervisor.parking.reasons(one.engine)]
        here = [one for one in wanted if one.engine in system.local_engines]
        met = (board.gauge(one.position, SchedulerGauge.BLOCKS_TOTAL) > 0 for one in here or wanted)
        if loaded and not (all(met) if here else any(met)):
            return False
        if not system.config.warm_up:
            return True
        return board.gauge(system.of_kind("frontend")[0].position, FrontendGauge.WARM) > 0

    def ready(self) -> None:
        """The server serves."""
        self._tokens = self._gauge(SchedulerGauge.GENERATED)
        self._told_at = asyncio.get_running_loop().time()
        self._tell(READY=1, MAINPID=os.getpid(), STATUS="ready")

    def stopping(self) -> None:
        """It serves those that are there, and ends."""
        microseconds = int(min(stop_seconds(self._supervisor.shutdown_s) * MICROSECONDS, LONGEST_US))
        self._tell(STOPPING=1, STATUS=self._text(0.0), EXTEND_TIMEOUT_USEC=microseconds)

    def look(self) -> None:
        """Some time has passed."""
        if not self._manager.listens:
            return
        supervisor, now = self._supervisor, asyncio.get_running_loop().time()
        good = all(is_in_order(child, supervisor.system.config) for child in supervisor.children)
        if self._manager.watchdog_s and good and now - self._beat_at >= self._manager.watchdog_s / 2 - LATE_S:
            self._beat_at = now
            self._tell(WATCHDOG=1)
        if now - self._told_at >= TELL_S:
            status = self._text(now - self._told_at)
            self._told_at = now
            starting = not supervisor.ready and good and not supervisor.ending.is_set()
            extension = {"EXTEND_TIMEOUT_USEC": int(EXTEND_S * MICROSECONDS)} if starting else {}
            if extension or status != self._status:
                self._status = status
                self._tell(STATUS=status, **extension)

    def _text(self, seconds: float) -> str:
        """How the server is, in a line."""
        supervisor = self._supervisor
        missing = [child.name for child in supervisor.wanted if not child.up]
        if supervisor.ending.is_set():
            return f"stopping: {supervisor.connections.count} connections"
        if not supervisor.ready:
            return f"starting: waits for {', '.join(missing) or 'the first token'}"
        tokens, self._tokens = self._tokens, self._gauge(SchedulerGauge.GENERATED)
        rate = max(0, self._tokens - tokens) / seconds
        running, waiting = self._gauge(SchedulerGauge.RUNNING), self._gauge(SchedulerGauge.WAITING)
        restarts = sum(child.deaths for child in supervisor.children)
        state = f"{', '.join(missing)} being started again" if missing else "ready"
        return f"{state}: {running} running, {waiting} waiting, {rate:.0f} tokens/s, {restarts} restarts"

    def _gauge(self, number: SchedulerGauge) -> int:
        """The sum of all schedulers'."""
        system, board = self._supervisor.system, self._supervisor.memory.board
        return sum(board.gauge(scheduler.position, number) for scheduler in system.of_kind("scheduler"))

    def _tell(self, **fields: object) -> None:
        try:
            self._manager.tell(**fields)
        except OSError as error:  # the manager decides what its not hearing means
            if not self._unheard:
                self._supervisor.output.say(f"the service manager cannot be told how the server is: {error.strerror}")
            self._unheard = True
        else:
            self._unheard = False
