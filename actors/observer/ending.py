"""How a server ends, as its board tells it, also once it has ended: who looks has its memory mapped still."""

from __future__ import annotations

from actorserve.shm.board.board import Board, Order

from ..telemetry.gauges import FrontendGauge
from .attach import Attached, AttachError, RunningServer, attach


class Ending:
    """Of one server, from before its end on."""

    def __init__(self, server: Attached) -> None:
        system = server.system
        self._board = Board(server.segment, system.board_offset, system.board_blocks)
        self._frontends = [spec.position for spec in system.with_clients]

    @property
    def gives_up(self) -> bool:
        """Whoever waits is told that there will be no answer."""
        return any(self._board.order(position) is Order.GIVE_UP for position in self._frontends)

    @property
    def cut_off(self) -> int:
        """How many requests ended with it: they were told so, or their frontend was killed with them in hand."""
        board = self._board
        return sum(max(board.left(at), board.gauge(at, FrontendGauge.IN_FLIGHT)) for at in self._frontends)


def watch_ending(server: RunningServer) -> Ending | None:
    """None where its memory cannot be read, as that of another version."""
    try:
        return Ending(attach(pid=server.pid))
    except AttachError:
        return None
