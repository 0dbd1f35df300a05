"""How many engines run: those with the lowest numbers do, the others are parked."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from actorserve.shm.board.board import Parked

from ...protocol.kinds import KINDS
from ..changes import OperationStopped, raise_mistake
from ..control.socket import CommandRefused
from ..progress import OperationProgress

if TYPE_CHECKING:
    from ..supervisor import Supervisor

START_S = max(kind.start_s for kind in KINDS.values() if kind.computes)


class Scaling:
    """Of one server; one change at a time."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.progress: OperationProgress | None = None  # of the last one
        self._task: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> list[int]:
        """The engines that are to run, whether they sleep or not."""
        return [engine for engine in self._supervisor.system.local_engines if not self._is_parked(engine)]

    @property
    def under_way(self) -> str:
        """Which change is; nothing if none is."""
        last = self.progress
        return "" if last is None or last.done else f"the server is being scaled to {last.what}"

    def begin(self, engines: int) -> OperationProgress:
        """From now on so many are wanted; CommandRefused if that cannot be. Who asks for what is under way joins it."""
        most, last = len(self._supervisor.system.local_engines), self.progress
        if len(self._supervisor.system.models) > 1:
            raise CommandRefused("engines are not scaled where there are several models (--also)")
        if not 1 <= engines <= most:
            raise CommandRefused(f"engines: must be between 1 and {most} (--max-data-parallel-size), not {engines}")
        if last is not None and not last.done and last.wanted == engines:
            return last
        self._supervisor.refuse_if_busy()
        number = 1 if last is None else last.number + 1
        self.progress = OperationProgress(number, f"{engines} engine{'s' * (engines > 1)}", engines)
        self._task = asyncio.get_running_loop().create_task(self._run(self.progress))
        self._task.add_done_callback(raise_mistake)
        return self.progress

    def _is_parked(self, engine: int) -> bool:
        return Parked.SCALE in self._supervisor.parking.reasons(engine)

    async def _run(self, progress: OperationProgress) -> None:
        output = self._supervisor.output
        output.say(f"the server is scaled from {len(self.wanted)} to {progress.what}")
        failed = ""
        try:
            await self._start(progress)
            await self._park(progress)
        except OperationStopped as stopped:
            failed = str(stopped)
        count = len(self.wanted)
        output.say(f"the server has {count} engine{'s'[: count > 1]} now" + (f": {failed}" if failed else ""))
        progress.end(failed)

    async def _start(self, progress: OperationProgress) -> None:
        parking, changes = self._supervisor.parking, self._supervisor.changes
        started = [
            engine
            for engine in range(progress.wanted)
            if self._is_parked(engine) and parking.unpark(engine, Parked.SCALE)
        ]
        for engine in started:
            settled = await changes.until(partial(self._is_settled, engine), START_S)
            if not settled or not parking.serves(engine):
                why = parking.trouble.get(engine, "it is not ready yet")
                raise OperationStopped(f"engine {engine} did not come up: {why}")
            progress.say(f"engine {engine} {'sleeps' if parking.sleeps(engine) else 'serves'}")

    def _is_settled(self, engine: int) -> bool:
        parking = self._supervisor.parking
        return parking.serves(engine) or bool(parking.reasons(engine))

    async def _park(self, progress: OperationProgress) -> None:
        engines = [engine for engine in self.wanted if engine >= progress.wanted]
        if engines:
            await self._supervisor.parking.park(engines, Parked.SCALE)
            for engine in engines:
                progress.say(f"engine {engine} is parked")
