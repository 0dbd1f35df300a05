"""A model that is loaded once it is asked for, or anew as its worker has died, and kills each worker that loads it:
want of memory, broken kernels.

Each of these deaths counts (--max-restarts), and one too many ends the server with all its other models. So after some
of them the model sleeps, as one that cannot be loaded, and for a while nobody has it tried once more. Deaths are
counted by the lives of the engine's first worker, of which the parked one ends by itself; that of a worker that had a
model is the first of them. Who has the model loaded does not matter: requests or an operator. A successor of the
scheduler counts anew, from the life that it finds. Only the server's own start is not counted.
"""

from __future__ import annotations

import time

from ...runtime.process import Context

MOST_DEATHS = 3  # of --max-restarts' five; one more may be loading when its scheduler gives it up
REST_S = 60.0  # --max-restarts are within a minute
PROBLEM = f"its worker has died {MOST_DEATHS} times, and not loaded the model since; the log says how"


class LoadingDeaths:
    """Those of one engine's workers, where the server has other models."""

    def __init__(self, context: Context) -> None:
        self._board = context.board
        self._worker = context.system.workers_of(context.spec.engine)[0].position
        self._counts = len(context.system.models) > 1
        is_successor = context.incarnation > 1
        self._first = self._life if is_successor else None  # the first life that is to load the model
        self._rests_until = 0.0

    def begin(self) -> None:
        """The parked life ends now; the next one loads."""
        self._first = self._life + 1

    def are_too_many(self, is_parked: bool, met: int) -> bool:
        """Have there been so many? `is_parked`: no model is wanted; `met`: the life that has it, or had it last,
        or 0: none since it slept.
        """
        if not self._counts:
            return False
        self._first = None if is_parked else met or self._first
        if self._first is None or self._life - self._first < MOST_DEATHS:
            return False
        self.rest()
        return True

    @property
    def _life(self) -> int:
        return self._board.incarnation(self._worker)

    def rest(self) -> None:
        """From now on."""
        self._rests_until = time.monotonic() + REST_S

    @property
    def rests(self) -> bool:
        """Is the model not to be tried now?"""
        return time.monotonic() < self._rests_until
