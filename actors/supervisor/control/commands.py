"""What the supervisor answers on its control socket."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...protocol.sockets import control_wire as wire
from ...telemetry.gauges import FrontendGauge
from ...telemetry.snapshot import describe_parked
from .socket import CommandRefused

if TYPE_CHECKING:
    from ..supervisor import Supervisor


A = TypeVar("A")
LONGEST_S = 7 * 86_400.0


class ControlCommands:
    """What each command of the control socket does."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def add_all(self) -> None:
        """Let the control socket answer them."""
        add = self._supervisor.control.add
        add(wire.STATUS.name, self.status)
        add(wire.RESTART.name, self.restart)
        add(wire.RESTART_PROGRESS.name, self.restart_progress)
        add(wire.SCALE.name, self.scale)
        add(wire.SCALE_PROGRESS.name, self.scale_progress)
        add(wire.DRAIN.name, self.drain)
        add(wire.LEFT.name, self.left)

    async def status(self, arguments: dict[str, Any]) -> wire.ServerStatus:
        """How the supervisor itself sees the server."""
        supervisor = self._supervisor
        children = [
            wire.ChildStatus(child.name, child.pid, child.up, child.deaths, child.hung, describe_parked(child.parked))
            for child in supervisor.children
        ]
        return wire.ServerStatus(supervisor.ready, supervisor.ending.is_set(), children, supervisor.under_way)

    async def restart(self, arguments: dict[str, Any]) -> wire.RestartBegun:
        """Begin a rolling restart; how it goes is asked by its number."""
        asked = _read(arguments, wire.RESTART.arguments)
        roll = self._supervisor.rolling.begin(asked.what, asked.options)
        return wire.RestartBegun(roll.number, roll.wanted)

    async def restart_progress(self, arguments: dict[str, Any]) -> wire.OperationNews:
        """What a restart has come to; waits a while for news."""
        asked, roll = _read(arguments, wire.RESTART_PROGRESS.arguments), self._supervisor.rolling.roll
        if roll is None or roll.number != asked.number:
            raise CommandRefused(f"restart {asked.number} is not the last one")
        return await roll.progress(asked.seen)

    async def scale(self, arguments: dict[str, Any]) -> wire.ScaleBegun:
        """Let so many engines run; how it goes is asked by its number."""
        asked, scaling = _read(arguments, wire.SCALE.arguments), self._supervisor.scaling
        before = len(scaling.wanted)
        return wire.ScaleBegun(scaling.begin(asked.engines).number, before)

    async def scale_progress(self, arguments: dict[str, Any]) -> wire.OperationNews:
        """What that has come to; waits a while for news."""
        asked, last = _read(arguments, wire.SCALE_PROGRESS.arguments), self._supervisor.scaling.progress
        if last is None or last.number != asked.number:
            raise CommandRefused(f"scaling {asked.number} is not the last one")
        return await last.progress(asked.seen)

    async def drain(self, arguments: dict[str, Any]) -> wire.DrainBegun:
        """Begin to end, or leave less time to one that ends; `left` tells how far that is."""
        asked, supervisor = _read(arguments, wire.DRAIN.arguments), self._supervisor
        if asked.timeout is not None and not 0 <= asked.timeout <= LONGEST_S:
            raise CommandRefused(f"a timeout lies between 0 and {LONGEST_S:.0f} s")
        if supervisor.ending.is_set() and not supervisor.shutdown.waits:
            raise CommandRefused("the server ends already, and waits for no request")
        requests = self._requests()
        if supervisor.ending.is_set():
            seconds = supervisor.shutdown.hurry(math.inf if asked.timeout is None else asked.timeout)
        else:
            seconds = supervisor.shutdown_s if asked.timeout is None else asked.timeout
            supervisor.drain(seconds)
        return wire.DrainBegun(round(seconds, 1) if math.isfinite(seconds) else None, requests)

    async def left(self, arguments: dict[str, Any]) -> wire.Left:
        """What still runs."""
        return wire.Left(self._requests(), self._supervisor.connections.count)

    def _requests(self) -> int:
        """That are being answered."""
        children, board = self._supervisor.children, self._supervisor.memory.board
        alive = [one for one in children if one.traits.has_clients and not one.gone.is_set()]
        return sum(board.gauge(one.spec.position, FrontendGauge.IN_FLIGHT) for one in alive)


def _read(arguments: dict[str, Any], kind: type[A]) -> A:
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise CommandRefused(str(error)) from None
