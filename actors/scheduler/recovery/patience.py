"""Whether who has lost its worker waits for the next one, or gives all away at once.

On a CPU the next life finds the KV memory of this one (worker/kept_memory/file.py), so that whoever runs goes on where
it stood; another engine computes again what it has not cached, while its own requests wait. So one waits where the next
life is likely to be there before that would be done: by how long this one took, but for what templates do ahead. If it
is not there in twice that time, all is given away as without.
"""

from __future__ import annotations

from ...protocol.actor_spec import ActorSpec
from ...runtime.process import Context
from ...telemetry.snapshot import phases_of
from ...telemetry.startup import StartPhase
from ..scheduler import Scheduler

AHEAD = (StartPhase.SPAWN, StartPhase.IMPORTS)  # what a template has done
FORK_S = 0.05  # in place of these
MOST_S = 0.4  # expected; one that takes longer is not waited for
LATE = 2.0  # times as long as expected


class Patience:
    """Of one engine. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, context: Context, scheduler: Scheduler, worker: ActorSpec) -> None:
        self._context, self._scheduler, self._worker = context, scheduler, worker
        self._start_s = 0.0  # what the next life takes; 0: it has nothing to go on with
        self._end = 0.0

    def met(self, keeps_memory: bool) -> None:
        """The worker that is there now."""
        self._end = 0.0
        context = self._context
        took = phases_of(context.system, context.segment, context.board, self._worker.name)
        ahead = sum(took.get(phase.name.lower(), 0.0) for phase in AHEAD)
        self._start_s = sum(took.values()) - ahead + FORK_S if keeps_memory else 0.0

    def begin(self, now: float, cached: int) -> None:
        """The worker is lost; of the tokens that are here others have so many."""
        known = sum(one.num_tokens for one in self._scheduler.sequences.values())
        again_s = self._scheduler.chunk_size.expected(0, max(0, known - cached))
        pays = 0.0 < self._start_s <= MOST_S and self._start_s < again_s
        self._end = now + LATE * self._start_s if pays else 0.0

    def left_s(self, now: float) -> float:
        """How long to wait on."""
        return max(0.0, self._end - now)
