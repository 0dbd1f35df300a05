"""What the supervisor answers on its control socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...telemetry.gauges import FrontendGauge
from .socket import Refused

if TYPE_CHECKING:
    from ..supervisor import Supervisor


A = TypeVar("A")
LONGEST_S = 7 * 86_400.0


class RestartRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Whom to replace, and which of their options are to be others."""

    what: str
    options: dict[str, Any] = {}


class ProgressRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Of which restart, and how many lines of it are known."""

    number: int
    seen: int = 0


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many seconds running requests get; as long as on SIGTERM if left out."""

    timeout: float | None = None


class Verbs:
    """Each method named in `add_all` is a command of that name."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def add_all(self) -> None:
        """Let the control socket answer them."""
        for command in (self.status, self.restart, self.restart_progress, self.drain, self.left):
            self._supervisor.control.add(command.__name__, command)

    async def status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """How the supervisor itself sees the server."""
        supervisor = self._supervisor
        return {
            "ready": supervisor.ready,
            "ending": supervisor.ending.is_set(),
            "actors": [
                {"name": child.name, "pid": child.pid, "up": child.up, "restarts": child.restarts, "hung": child.hung}
                for child in supervisor.children
            ],
        }

    async def restart(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Begin a rolling restart; how it goes is asked by its number."""
        asked = _read(arguments, RestartRequest)
        roll = self._supervisor.rolling.begin(asked.what, asked.options)
        return {"number": roll.number, "actors": roll.wanted}

    async def restart_progress(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a restart has come to; waits a while for news."""
        asked, roll = _read(arguments, ProgressRequest), self._supervisor.rolling.roll
        if roll is None or roll.number != asked.number:
            raise Refused(f"restart {asked.number} is not the last one")
        return await roll.progress(asked.seen)

    async def drain(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Begin to end; `left` tells how far that is."""
        asked, supervisor = _read(arguments, DrainRequest), self._supervisor
        if supervisor.ending.is_set():
            raise Refused("the server ends already")
        seconds = supervisor.shutdown_s if asked.timeout is None else asked.timeout
        if not 0 <= seconds <= LONGEST_S:
            raise Refused(f"a timeout lies between 0 and {LONGEST_S:.0f} s")
        supervisor.drain(seconds)
        return {"seconds": seconds}

    async def left(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What still runs."""
        supervisor = self._supervisor
        board = supervisor.memory.board
        alive = [one for one in supervisor.children if one.traits.has_clients and not one.gone.is_set()]
        requests = sum(board.gauge(one.spec.position, FrontendGauge.IN_FLIGHT) for one in alive)
        return {"requests": requests, "connections": supervisor.connections.count}


def _read(arguments: dict[str, Any], kind: type[A]) -> A:
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise Refused(str(error)) from None
