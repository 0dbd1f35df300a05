"""A model that is loaded once it is asked for, and kills each worker that loads it: want of memory, broken kernels.

Each of these deaths counts (--max-restarts), and one too many ends the server with all its other models. So after some
of them the model sleeps again, as one that cannot be loaded, and for a while nobody has it tried once more. Deaths are
counted by the lives of the engine's first worker, of which the parked one ends by itself. A successor of the scheduler
counts anew.
"""

from __future__ import annotations

import time

from ...runtime.process import Context

MOST_DEATHS = 3  # of --max-restarts' five; one more may be loading when its scheduler gives it up
REST_S = 60.0  # --max-restarts are within a minute
PROBLEM = f"its worker has died {MOST_DEATHS} times while it loaded the model; the log says how"


class LoadingDeaths:
    """Those of one engine's workers, where the server has other models."""

    def __init__(self, context: Context) -> None:
        self._board = context.board
        self._worker = context.system.workers_of(context.spec.engine)[0].position
        self._counts = len(context.system.models) > 1
        self._first: int | None = None  # the first life that is to load the model
        self._rests_until = 0.0

    def begin(self) -> None:
        """The parked life ends now; the next one loads."""
        self._first = self._board.incarnation(self._worker) + 1

    def are_too_many(self, loads: bool) -> bool:
        """Have there been so many? `loads`: the model is to be loaded, and is not yet."""
        if not (loads and self._counts):
            self._first = None
            return False
        life = self._board.incarnation(self._worker)
        if self._first is None:
            self._first = life
        if life - self._first < MOST_DEATHS:
            return False
        self._rests_until = time.monotonic() + REST_S
        return True

    @property
    def rests(self) -> bool:
        """Is the model not to be tried now?"""
        return time.monotonic() < self._rests_until
