"""How the server ends: in order, once running requests have ended; or at once, when it gives up, or they take too long.

In order: frontends first, which finish their requests; then what is behind them, in the reverse order of their start.

At once: each frontend finds the order on the board (shm/board/board.py), answers whoever waits with an error in the
form of its API, and ends. All that this needs is in the frontends, so the others are killed. A frontend that dies is
started once more, also the one that has died too often, since nobody else can tell its clients. Who is too slow is
killed.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from actorserve.shm.board.board import Order

from ..protocol.kinds import KINDS
from ..telemetry.gauges import FrontendGauge
from .timeouts import KILL_S, LAST_LIFE_S, STOP_S

if TYPE_CHECKING:
    from .processes.child import Child
    from .restart_policy import Death
    from .supervisor import Supervisor


class Shutdown:
    """The end of one server."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._at_once = self._is_told = False  # by SIGINT or SIGTERM: the next one of these forces the end
        self._last_lives: set[Child] = set()
        self._began: float | None = None  # in the loop's seconds
        self._limit: asyncio.Timeout | None = None  # of running requests, while they are waited for

    @property
    def _frontends(self) -> list[Child]:
        return [child for child in self._supervisor.children if child.traits.has_clients]

    def signalled(self, number: signal.Signals) -> None:
        """SIGHUP never forces the end: at that of a terminal it comes from the shell and from the kernel."""
        supervisor, was_told = self._supervisor, self._is_told
        self._is_told = was_told or number is not signal.SIGHUP
        if not supervisor.ending.is_set():
            supervisor.end(0, f"{number.name}: the server stops")
        elif number is signal.SIGHUP:
            return
        elif was_told:
            supervisor.forced = True
            supervisor.status = supervisor.status or 1
            supervisor.output.say(f"{number.name} again: everything ends now", "warning")
            self.kill_all()
        else:  # a drain, a failure or SIGHUP has begun it
            supervisor.output.say(f"{number.name}: the server ends already; another one ends everything now")
            self.hurry(supervisor.system.config.shutdown_timeout)

    def hurry(self, seconds: float) -> float:
        """From now on running requests get no more than this; how long they have."""
        supervisor, now = self._supervisor, asyncio.get_running_loop().time()
        began = now if self._began is None else self._began
        supervisor.shutdown_s = min(supervisor.shutdown_s, round(now - began + seconds, 1))
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(began + supervisor.shutdown_s)
        return max(0.0, began + supervisor.shutdown_s - now)

    @property
    def waits(self) -> bool:
        """Do running requests still get time?"""
        return not (self._at_once or self._supervisor.forced)

    async def stop(self) -> None:
        """Return when all actors have ended."""
        supervisor = self._supervisor
        self._began = asyncio.get_running_loop().time()
        supervisor.connections.stop()
        if not supervisor.ready:
            self.give_up()  # no request can be finished
        for kind in reversed(KINDS.values()):
            if self._at_once:
                await self._end_at_once()
                return
            children = [child for child in supervisor.children if child.traits is kind]
            if await self._end(children, asyncio.timeout(supervisor.shutdown_s if kind.has_clients else STOP_S)):
                continue
            if kind.has_clients:
                names = ", ".join(child.name for child in children if not child.gone.is_set())
                why = f"requests have not ended after {supervisor.shutdown_s:g} s and get an error"
                supervisor.output.say(f"{names}: {why}", "warning")
                self.give_up()
            else:
                self._kill(children, STOP_S)
                await self._bury(children)

    async def _end(self, children: Sequence[Child], limit: asyncio.Timeout) -> bool:
        """In order; False if some have not ended in time."""
        for child in children:
            child.stopping = True
            self._supervisor.ask_to_end(child)
        self._limit = limit if any(child.traits.has_clients for child in children) else None
        try:
            return await _gone(children, limit)
        finally:
            self._limit = None

    def leaves_work(self, child: Child, death: Death) -> bool:
        """Has this frontend not come to the end of its drain? Its successor drains, too, or the server gives up."""
        supervisor = self._supervisor
        return (
            child.traits.has_clients
            and not (self._at_once or supervisor.forced)
            and death.returncode != 0
            and bool(supervisor.connections.numbers(child.name))
        )

    # --- at once -------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Clients are told from now on, also by frontends that end in order already."""
        if self._at_once:
            return
        self._at_once = True
        memory = self._supervisor.memory
        for child in self._frontends:
            left = memory.board.gauge(child.spec.position, FrontendGauge.IN_FLIGHT)
            memory.order(child.spec, Order.GIVE_UP, left)
        asyncio.get_running_loop().call_later(STOP_S, self._too_late)

    async def _end_at_once(self) -> None:
        ready = self._supervisor.ready
        for child in self._supervisor.children:
            child.stopping = True
            if child.traits.has_clients and child.up:
                child.signal(signal.SIGTERM)
            elif not child.traits.has_clients or not ready:
                child.signal(signal.SIGKILL)
        await self._bury(self._supervisor.children)

    def begins_last_life(self, child: Child, death: Death) -> bool:
        """Is this frontend, which has died, to be started once more, to tell those that it leaves behind?"""
        supervisor = self._supervisor
        if not (self._at_once and supervisor.ready) or supervisor.forced or death.returncode == 0:
            return False
        if child in self._last_lives or not child.traits.has_clients or not supervisor.connections.numbers(child.name):
            return False
        self._last_lives.add(child)
        return True

    def tell_clients(self) -> None:
        """As far as that goes without the event loop, in which there was a mistake."""
        deadline = time.monotonic() + STOP_S
        for child in self._frontends:
            child.signal(signal.SIGTERM)
        for child in self._frontends:
            child.reap(max(0.0, deadline - time.monotonic()))

    def _too_late(self) -> None:
        """A frontend that hangs tells nobody: it is killed for a last life. One that is in it has begun later."""
        self._kill((child for child in self._supervisor.children if child not in self._last_lives), STOP_S)
        asyncio.get_running_loop().call_later(LAST_LIFE_S, self._all_too_late)

    def _all_too_late(self) -> None:
        self._supervisor.forced = True
        self._kill(self._supervisor.children, LAST_LIFE_S)

    # --- by force ------------------------------------------------------------------------------------------------

    def kill_all(self) -> None:
        """Everything ends now."""
        for child in self._supervisor.children:
            child.stopping = True
            child.signal(signal.SIGKILL)

    def _kill(self, children: Iterable[Child], after_s: float) -> None:
        for child in children:
            if not child.gone.is_set():
                self._supervisor.output.say(f"{child.name} has not ended after {after_s:g} s and is killed", "warning")
                child.signal(signal.SIGKILL)

    async def _bury(self, children: Sequence[Child]) -> None:
        """Those that are killed, or will be."""
        if not await _gone(children, asyncio.timeout(STOP_S + LAST_LIFE_S + KILL_S)):
            left = ", ".join(child.name for child in children if not child.gone.is_set())
            self._supervisor.status = self._supervisor.status or 1
            self._supervisor.output.say(f"{left} cannot be killed", "error")


async def _gone(children: Iterable[Child], limit: asyncio.Timeout) -> bool:
    """Wait until all of them have ended; False if they have not in time."""
    try:
        async with limit:
            for child in children:
                await child.gone.wait()
    except TimeoutError:
        return False
    return True
