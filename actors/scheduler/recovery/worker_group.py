"""The processes of an engine's worker, as the board has them: whether those that were met live, and how they ended."""

from __future__ import annotations

from ...runtime.in_flight import NO_REQUEST
from ...runtime.process import Context


class WorkerGroup:
    """All that compute one engine's steps together. Of several one that ends by itself takes the others along."""

    def __init__(self, context: Context) -> None:
        self._board = context.board
        self._workers = [worker.position for worker in context.system.workers_of(context.spec.engine)]
        self._lives: list[int] = []  # of the workers that were met

    def met(self, first: int) -> None:
        """Those of whom the first is in this life compute."""
        self._lives = [first, *map(self._board.incarnation, self._workers[1:])]

    @property
    def is_gone(self) -> bool:
        """Is there no worker, or one that has not said yet that it is there?"""
        if self._lives:
            return any(map(int.__ne__, map(self._board.incarnation, self._workers), self._lives))
        return not all(map(self._board.is_ready, self._workers))

    def was_replaced(self) -> bool:
        """The worker that was met has ended since it was told to, or killed by somebody: no request is to blame."""
        board = self._board
        return all(board.is_parked(one) or board.ended(one) in NO_REQUEST for one in self._workers)
