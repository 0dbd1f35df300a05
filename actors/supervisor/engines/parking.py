"""Actors of which no life is wanted are parked: their places stay in shared memory, with nobody in them.

An engine is parked by its workers, who have the weights and the KV memory. Its scheduler stays: it is the address that
late messages of its slots come to, and passes everything on to other engines. So nothing that crosses a lane is lost,
whoever sent it when; a scheduler without anything to do takes a few megabytes and no time.

    1  the reason is stored on the board, for each worker: routers choose other engines from now on
    2  its scheduler gives its sequences away as soon as an engine can take them, and lets go of the worker
    3  the workers are ended, and what their KV memory held is let go of
To give an engine its workers back the reason is taken off the board, and they are started: when they are ready and
their scheduler has met them, routers choose the engine again. There may be several reasons at once, each with its own
operation; an engine has its workers while there is none.

If a worker dies between 1 and 3 it is not started again. If a scheduler dies there, its successor reads the board. If
this process dies, so does the server.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from actorserve.shm.board.board import Parked
from actorserve.shm.kv_map.sleep import SleepWord

from ...telemetry.gauges import SchedulerGauge
from ...telemetry.snapshot import describe_parked
from ..changes import OperationStopped
from ..timeouts import KILL_S

if TYPE_CHECKING:
    from ..processes.child import Child
    from ..restart_policy import Death
    from ..supervisor import Supervisor

LEAVE_S = 60.0  # for other engines to take what runs in one


class Parking:
    """Of one server. What it waits for is told to `supervisor.changes`."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.trouble: dict[int, str] = {}  # why an engine did not come up the last time, by its number
        config = supervisor.system.config
        for engine in range(config.engines_at_start, config.local_engines):
            for child in self._workers(engine):
                self._mark(child, Parked.SCALE)
                child.gone.set()

    def reasons(self, engine: int) -> Parked:
        """Why an engine is parked; nothing if it is not."""
        return next((child.parked for child in self._workers(engine)), Parked.NO)  # one elsewhere has none here

    def _workers(self, engine: int) -> list[Child]:
        children = self._supervisor.children
        return [child for child in children if child.traits.computes and child.spec.engine == engine]

    def _mark(self, child: Child, why: Parked) -> None:
        child.parked = why
        self._supervisor.memory.park(child.spec, why)

    # --- down ----------------------------------------------------------------------------------------------------

    async def park(
        self, engines: Sequence[int], why: Parked, *, give_away: bool = True, keep_memory: bool = False
    ) -> None:
        """End the workers of these engines, for this reason. OperationStopped if no other engine takes what runs there;
        then all is as before. Without `give_away` it waits for nobody: what runs goes to an engine that is there, or
        waits until there is one. `keep_memory`: what KV memory held is there again later, where a file has it.
        """
        workers = [child for engine in engines for child in self._workers(engine)]
        for child in workers:
            self._mark(child, child.parked | why)
        if give_away and not await self._supervisor.changes.until(lambda: all(map(self._is_left, engines)), LEAVE_S):
            for child in workers:
                self._mark(child, child.parked & ~why)
            names = ", ".join(map(str, engines))
            raise OperationStopped(f"no other engine has taken what runs in engine {names} within {LEAVE_S:.0f} s")
        await self._end(workers)
        for child in workers:
            if not keep_memory:
                self._supervisor.memory.forget_kv(child.spec)
        for engine in engines:
            self._supervisor.output.say(f"engine {engine} is parked ({describe_parked(self.reasons(engine))})")

    async def leave(self, engine: int) -> None:
        """What runs there goes on in other engines of the model, if one serves, since its workers or its scheduler are
        about to be replaced; if none takes it, it pauses. To be followed by `join`.
        """
        if any(self.serves(other) for other in self._supervisor.system.model_of(engine).engines if other != engine):
            for child in self._workers(engine):
                self._supervisor.memory.park(child.spec, child.parked | Parked.RESTART)
            await self._supervisor.changes.until(lambda: self._is_left(engine), LEAVE_S)

    def join(self, engine: int) -> None:
        """It takes part again, as soon as it can."""
        for child in self._workers(engine):
            self._mark(child, child.parked)

    def _is_left(self, engine: int) -> bool:
        """Its scheduler has let go of the workers, and of all sequences with them; or they are gone already."""
        supervisor = self._supervisor
        if any(child.gone.is_set() for child in self._workers(engine)):
            return True
        scheduler = supervisor.system.by_name[supervisor.system.schedulers[engine]]
        board = supervisor.memory.board
        return board.is_ready(scheduler.position) and not board.gauge(scheduler.position, SchedulerGauge.BLOCKS_TOTAL)

    async def _end(self, workers: Sequence[Child]) -> None:
        """The first of each group in order; the others, which wait for it in a step, at once."""
        supervisor = self._supervisor
        for child in workers:
            if child.spec.index:
                child.signal(signal.SIGKILL)
            else:
                supervisor.ask_to_end(child)
        if await supervisor.changes.until(lambda: _are_gone(workers), supervisor.system.config.step_timeout):
            return
        for child in workers:
            child.signal(signal.SIGKILL)
        if not await supervisor.changes.until(lambda: _are_gone(workers), KILL_S):
            left = ", ".join(child.name for child in workers if not child.gone.is_set())
            raise OperationStopped(f"{left} cannot be killed")

    def died(self, child: Child, death: Death) -> None:
        """No successor is wanted of this one, nor of those that wait for it."""
        self._supervisor.output.say(f"{death}; it is parked")
        for member in {child, *child.group}:
            if member is child or member.waits:
                member.with_others, member.waits, member.on_trial = False, False, Parked.NO
                member.gone.set()
        self._supervisor.changes.tell()

    # --- up ------------------------------------------------------------------------------------------------------

    def unpark(self, engine: int, why: Parked) -> bool:
        """This reason is gone; where it was the last one its workers are started. Are they?"""
        workers = self._workers(engine)
        was_parked = bool(self.reasons(engine))
        for child in workers:
            self._mark(child, child.parked & ~why)
        if not was_parked or self.reasons(engine):
            return False
        for child in workers:
            self.trouble.pop(engine, None)
            child.group, child.on_trial = [child], why
            self._supervisor.memory.is_wanted(child.spec)
            child.gone.clear()
            self._supervisor.start(child)
        return True

    def sleeps(self, engine: int) -> bool:
        """Are its workers to have no model, so that there is nothing to meet?"""
        supervisor = self._supervisor
        offset = supervisor.system.kv_map_offsets[engine]
        return SleepWord(supervisor.memory.segment.map, offset).state.is_parked

    def serves(self, engine: int) -> bool:
        """Its workers are up, and its scheduler has met them, or they sleep; of one elsewhere, its link is."""
        supervisor = self._supervisor
        if engine in supervisor.system.remote_engines:
            return any(child.up for child in supervisor.children if child.name == supervisor.system.schedulers[engine])
        scheduler = supervisor.system.by_name[supervisor.system.schedulers[engine]]
        met = supervisor.memory.board.gauge(scheduler.position, SchedulerGauge.BLOCKS_TOTAL)
        is_met = bool(met) or self.sleeps(engine)
        return is_met and all(child.up and not child.parked for child in self._workers(engine))

    def failed(self, child: Child, death: Death) -> None:
        """One that was to be there again does not come up: its engine is parked as before, and the server goes on."""
        engine, why = child.spec.engine, child.on_trial
        self.trouble[engine] = str(death)
        self._supervisor.output.say(f"{death}; engine {engine} stays parked", "error")
        for member in self._workers(engine):
            self._mark(member, member.parked | why)
            member.on_trial = Parked.NO
            if member is not child:
                member.signal(signal.SIGKILL)
        child.gone.set()
        self._supervisor.changes.tell()


def _are_gone(workers: Sequence[Child]) -> bool:
    return all(child.gone.is_set() for child in workers)
