"""Between a scheduler's fetches and the porter and workers: who is told what, and which numbers are settled."""

from __future__ import annotations

from ...protocol.topics.tiers import BlocksLoaded, Fetched, LoadBlocks
from ...runtime.process import Context
from ..scheduler import Scheduler
from .fetches import Fetches


class TierLanes:
    """Of one scheduler of a server with --kv-offload."""

    def __init__(self, context: Context, scheduler: Scheduler) -> None:
        self._context, self._engine = context, context.spec.engine
        arena = context.kv_tier()
        assert arena is not None, "there is no arena without --kv-offload"
        self._arena = arena
        self._porter = context.system.of_kind("porter")[0]
        workers = len(context.system.workers_of(self._engine))
        self.fetches = Fetches(scheduler, self._engine, context.incarnation, workers)
        self._settled = 0
        scheduler.tiers = self.fetches
        scheduler.planner.loading = self.fetches.loading
        self._settle()  # what a predecessor wanted is over

    def handle(self, message: Fetched | BlocksLoaded) -> None:
        """It may come twice."""
        if isinstance(message, Fetched):
            self.fetches.fetched(message)
        else:
            self.fetches.loaded(message)

    def turn(self, workers: str) -> int:
        """Look at who has come and who waits; `workers`: the lane to the group."""
        self.fetches.turn(self._context.board.is_ready(self._porter.position))
        outbox, done = self.fetches.outbox, len(self.fetches.outbox)
        while outbox:
            message = outbox.popleft()
            self._context.post(workers if isinstance(message, LoadBlocks) else self._porter.name, message)
        self._settle()
        return done

    def _settle(self) -> None:
        if (settled := self.fetches.settled) != self._settled:
            self._arena.settle(self._engine, settled)
            self._settled = settled

    def sooner(self, wait_s: float) -> float:
        """The actor may sleep so long."""
        until = self.fetches.wait_s
        return wait_s if until is None else min(wait_s, until)
