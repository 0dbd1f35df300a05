"""Starts the actors, watches them, starts again those that die or hang, stops them in reverse. It handles no request.

What it does with which kind stands in protocol/kinds.py. Who dies too often, or cannot start at all, ends
the server.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from actorserve.shm.board.board import ActorState, BoardWriter, Order, Parked

from ..protocol.kinds import SUPERVISOR
from ..protocol.topology import System
from ..runtime.process import RENEW
from ..runtime.signals import UNUSED
from ..telemetry.startup import StartPhase
from .activity import Activity
from .changes import Changes
from .connections.admission import Admission
from .connections.descriptors import PAUSE_S
from .connections.pool import Connections
from .control.commands import ControlCommands
from .control.socket import CommandRefused, Control
from .engines.parking import Parking
from .engines.scaling import Scaling
from .liveness import LOOK_S
from .output import Output
from .processes.child import Child
from .processes.failed_starts import FailedStarts
from .processes.first_template import Ends
from .processes.spawn import ACTOR_COMMAND
from .processes.subreaper import become_subreaper, reap_orphans
from .processes.templates import Templates
from .recovery import Recovery
from .restart_policy import Death
from .rolling.restart import Rolling
from .shared_memory import Memory
from .shutdown import Shutdown
from .systemd.notify import Manager
from .systemd.service import Service
from .timeouts import KILL_S, why_hung, why_useless

SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
)  # that end the server in order; with --key-file, the last one reads that again


class Supervisor:
    """The tree's root: all children are its own."""

    def __init__(
        self,
        system: System,
        memory: Memory,
        listeners: Sequence[socket.socket],
        output: Output,
        control: Control,
        manager: Manager,
        *,
        admission: Admission | None = None,
        welcome: Callable[[], str],
        command: Sequence[str] = ACTOR_COMMAND,
        born: Ends | None = None,
    ) -> None:
        """`born`: the template that fork_first has made, where actors are forked."""
        self.system = system
        self.memory = memory
        frontends = [actor.name for actor in system.with_clients]
        self.shown = BoardWriter(memory.board, system.supervisor.position)  # how it stands with the server
        self.connections = Connections(listeners, frontends, admission or Admission(0))
        self.output = output
        self.control = control
        ControlCommands(self).add_all()
        self.service = Service(self, manager)
        self.activity = Activity(memory)
        self.welcome = welcome  # what to say when the server is ready
        self.shutdown_s = system.config.shutdown_timeout  # that running requests get to end
        self.warm = command == ACTOR_COMMAND  # actors are forked from templates
        self.templates = [Templates(output, memory, born=born)] if self.warm else []  # the last: of a rolling restart
        templates, most = self.templates[0] if self.warm else None, system.config.max_restarts
        self.children = [Child(spec, output, templates, most, command) for spec in system.actors]
        self.ending = asyncio.Event()
        self.changes = Changes(self.ending)
        self.parking = Parking(self)
        self.rolling = Rolling(self)
        self.scaling = Scaling(self)
        self.shutdown = Shutdown(self)
        self.recovery = Recovery(self)
        self.status = 0
        self.reason = ""  # why it could not start
        self.ready = False  # all actors have been up at once
        self.forced = False  # everything ends now
        self.failed = False  # this class has a mistake: its own picture cannot be trusted
        self.beside: set[int] = set()  # processes that others wait for
        self._failed_starts = FailedStarts()

    async def run(self) -> int:
        """Serve until a signal or a failure ends it; returns the exit status. No actor is left afterwards."""
        loop = asyncio.get_running_loop()
        self.output.watch(loop)
        self._heed_signals(loop)
        loop.set_exception_handler(self._failed)
        loop.add_reader(self.memory.eventfds[SUPERVISOR], self._look)
        become_subreaper()
        await self._open_control()
        try:
            for templates in self.templates:
                templates.start()
            for child in self.wanted:
                self.start(child)
            self.rolling.remember_layout()
            loop.call_later(LOOK_S, self._look_after)
            await self.ending.wait()
            self.service.stopping()
            if self.failed:
                self.shutdown.tell_clients()
            else:
                await self.shutdown.stop()
        finally:
            for templates in self.templates:
                templates.close()
            self.shutdown.kill_all()
            for child in self.children:
                child.reap(KILL_S)
            self.connections.close()
            self.control.close()
            loop.remove_reader(self.memory.eventfds[SUPERVISOR])
            if self.reason:
                self.output.say(self.reason, "critical")
        return self.status

    def _heed_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        ends = set(SIGNALS)
        if self.memory.keys.is_there:
            ends.remove(signal.SIGHUP)
            loop.add_signal_handler(signal.SIGHUP, self.memory.keys.read_again)
        for number in ends:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it with SIGHUP
                loop.add_signal_handler(number, self.shutdown.signalled, number)
        for number in UNUSED:
            loop.add_signal_handler(number, self._heard_unused, number)

    async def _open_control(self) -> None:
        try:
            await self.control.start()
        except OSError as error:  # it serves all the same
            self.output.say(f"there is no control socket: {error}", "warning")

    @property
    def wanted(self) -> list[Child]:
        """Those that are not parked."""
        return [child for child in self.children if not child.parked]

    @property
    def under_way(self) -> str:
        """Which operation on actors is; nothing if none is."""
        return self.rolling.under_way or self.scaling.under_way

    def refuse_if_busy(self) -> None:
        """CommandRefused where no operation on actors can begin."""
        if self.ending.is_set() or not self.ready:
            starts = "the server is still starting: ask again once it is ready"
            raise CommandRefused("the server ends, and nothing is changed any more" if self.ending.is_set() else starts)
        if self.under_way:
            raise CommandRefused(self.under_way)

    # --- up ------------------------------------------------------------------------------------------------------

    def start(self, child: Child) -> None:
        """Begin a life of it, unless all of them end."""
        if child.parked or (self.ending.is_set() and (self.forced or not self.ready)):
            self._is_gone(child)
            return
        self.memory.order(child.spec, Order.END if child.stopping else Order.NONE)
        child.found = self.memory.board.in_flight(child.spec.position)
        channel = None
        try:
            if child.traits.has_clients:
                channel = self.connections.open_channel(child.name)
            elif child.traits.is_client:
                channel = self.connections.acceptor.open_inside(child.name)
            boot = self.memory.boot(child.spec, channel.fileno() if channel else None)
            pass_fds = [*self.memory.inherited, *([channel.fileno()] if channel else [])]
            child.start(
                boot,
                pass_fds,
                self._look_soon,
                lambda death: self._died(child, death),
                lambda error: self._cannot_start(child, error),
                channel,
            )
        except OSError as error:
            if channel is not None:
                channel.close()
            self._cannot_start(child, error)

    def _cannot_start(self, child: Child, error: OSError) -> None:
        """For now: the kernel has no means, or the interpreter is being replaced. Once the server was ready what needs
        the actor waits, as for any that is being started again; before, or where that lasts, the server ends.
        """
        loop = asyncio.get_running_loop()
        if child.stopping or child.parked:
            self._is_gone(child)
        elif self.ready and (not self._failed_starts.lasts(child.name, error, loop.time()) or child.traits.rests):
            if self._failed_starts.is_to_be_said(child.name, loop.time()):
                self.output.say(f"{child.name} cannot be started yet: {error}; it is tried again", "warning")
            loop.call_later(PAUSE_S, self._start_again, child)
        else:
            child.gone.set()
            self.end(1, f"{child.name} cannot be started: {error}")

    def _is_gone(self, child: Child) -> None:
        """There is no process of it, and there will be none."""
        child.gone.set()
        self.changes.tell()

    def _start_again(self, child: Child) -> None:
        if child.stopping:  # meanwhile
            self._is_gone(child)
        elif child.with_others:  # one of its group has died meanwhile, and waits for it
            child.with_others = False
            self.recovery.start_group(child)
        else:
            self.start(child)

    def _look_soon(self) -> None:
        """There is a process, and it may have come up before that was known."""
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """An actor has changed its state on the board."""
        self.memory.clear_wakeup()
        for child in self.children:
            if child.process is None:  # a forked one may be up before its template has said who it is
                continue
            draining = self.memory.is_draining(child.spec)
            if not child.up and (draining or self.memory.is_ready(child.spec)):
                child.up, child.on_trial = True, Parked.NO
                self._failed_starts.is_up(child.name)
                if child.traits.has_clients and not self.ending.is_set():
                    self.connections.up(child.name)
                if not self.ready:
                    self.memory.phase_ends(StartPhase.ACTORS)
                self.output.say(f"{child.name} is up (pid {child.pid}, {self.memory.how_long(child.name)})")
            if draining and child.traits.has_clients:
                self.connections.pass_by(child.name)
        if not self.ready and all(child.up for child in self.wanted) and self.service.is_warm():
            self.ready = True
            self.memory.phase_ends(StartPhase.FIRST_TOKEN)
            if not self.ending.is_set():
                self.shown.set_state(ActorState.READY)
            self.output.say(self.welcome())
            self.service.ready()
        self.changes.tell()

    # --- liveness ------------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """A hang is a death: whoever's loop stands still for too long is killed."""
        asyncio.get_running_loop().call_later(LOOK_S, self._look_after)
        for child in self.children:
            if child.liveness is None or child.hung:
                continue
            child.liveness.look(self.memory.board.snapshot(child.spec.position))
            if reason := why_hung(child, self.system.config):
                child.was_busy, child.was_stopped = child.liveness.was_busy, child.liveness.is_stopped
            elif child.traits.has_clients:
                reason = why_useless(self.connections.in_want_s(child.name), self.system.config)
            if reason:
                child.hung = reason
                child.signal(signal.SIGKILL)
        self.service.look()
        self.memory.keys.look()
        self.activity.look()
        for templates in self.templates:
            templates.look()
        if not any(one.is_starting for one in self.templates):  # what they start is no child of anybody's yet
            forks = (pid for one in self.templates for pid in one.pids)
            reap_orphans({*forks, *self.beside, *(one.pid for one in self.children)})

    # --- down ----------------------------------------------------------------------------------------------------

    def _died(self, child: Child, death: Death) -> None:
        self._look()  # it may have come up and died in one turn
        was_up, child.up = child.up, False
        child.liveness = None
        if child.traits.has_clients:
            self.connections.lost(child.name)
        wanted = self.rolling.died(child, death, was_up) or bool(child.parked)
        renewed = death.returncode == RENEW
        child.renewals += renewed
        self.memory.raise_incarnation(child.spec, death.how(wanted), renewed)
        self.memory.wake_all()
        self.recovery.follow(child, death, was_up, wanted)

    def _heard_unused(self, number: signal.Signals) -> None:
        self.output.say(f"{number.name}: nothing is done at it; SIGTERM stops the server", "warning")

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A mistake in this module's own callbacks: nobody watches the watcher, so the server ends."""
        error = context.get("exception")
        lines = traceback.format_exception(error) if error else [context["message"]]
        self.output.say("".join(lines), "critical")
        self.failed = True
        self.end(1, "the supervisor has failed")

    def end(self, status: int, reason: str) -> None:
        """Begin to end; a status other than 0 is a failure, and ends everything at once."""
        if status and not self.ready and not self.failed and not self.ending.is_set():
            self.reason = reason  # it is the last line, behind all that others say at their ends
        else:
            self.output.say(reason, "critical" if status else "info")
        self.status = self.status or status
        self.ending.set()
        self.shown.set_state(ActorState.DRAINING)
        self.changes.tell()
        if status:
            self.shutdown.give_up()

    def drain(self, seconds: float) -> None:
        """End in order, as SIGTERM does; running requests get so long."""
        self.shutdown_s = seconds
        limit = f", after {seconds:g} s at most" if math.isfinite(seconds) else ""
        self.end(0, f"drain: the server stops once running requests have ended{limit}")

    def ask_to_end(self, child: Child) -> None:
        """In order. Actors take a SIGTERM that does not come from here for a death like any other."""
        self.memory.order(child.spec, Order.END)
        child.signal(signal.SIGTERM)
