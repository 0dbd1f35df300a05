"""Rolling restarts: actors are replaced one by one, by successors of the code on disk, while the server serves.

First other templates are started, which import the code as it is now; they say whether that fits the memory of this
server, and nothing is touched if it does not. Then each actor is ended in order and started anew, as after a death,
which costs no request; the next one's turn comes when the successor is ready. A successor that cannot come up is
replaced by one of the template and the options from before, and the restart ends there. Only the deaths of such
successors are counted as crashes.

Workers share the model, so all of an engine are replaced at once. The scheduler stays, and computes what runs again as
after a death; that it was no death the worker's successor tells it (WorkerReady), so that no request is blamed. Where
there are several engines, what runs in the one whose turn it is goes on in the others before anyone is ended
(engines/parking.py), and the next one's turn comes when this one serves again.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from actorserve.shm.journals.response_journal import ResponseJournal

from ...options.config import Config, ConfigError
from ...protocol.fingerprint import fingerprint
from ...runtime.descriptors import memory_file
from ...telemetry.gauges import FrontendGauge
from ..changes import OperationStopped, raise_mistake
from ..connections.descriptors import is_scarce
from ..control.socket import CommandRefused
from ..processes.child import Child
from ..processes.templates import Templates
from ..progress import OperationProgress
from ..restart_policy import Death
from ..timeouts import KILL_S
from . import option_changes
from .batches import choices, choose, in_batches, names_of, to_be_tried

if TYPE_CHECKING:
    from ..processes.template_process import Template
    from ..supervisor import Supervisor

MOST_DEATHS = 2  # of a successor that is killed before it is ready; one that fails by itself gets no second chance
FINGERPRINT_BYTES = 64
LATE_S = 5.0  # beyond a limit that another part of the supervisor enforces


class Rolling:
    """Replaces actors; one restart at a time."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._layout = ""
        self._lives: dict[Child, int] = {}  # restarts before of those that are being replaced
        self._deaths = 0  # of their successors that were not ready
        self._failure = ""
        self._before: dict[Child, Config | None] = {}
        self.roll: OperationProgress | None = None
        self._task: asyncio.Task[None] | None = None

    def remember_layout(self) -> None:
        """What this code makes of shared memory; to be called before the code on disk can be another.

        A template of the same code has most of what this takes, which is a fifth of what the supervisor would weigh.
        """
        supervisor = self._supervisor
        first = supervisor.templates[0].first if supervisor.templates else None
        if first is None or not first.usable:
            self._layout = fingerprint(supervisor.system)
            return
        try:
            self._ask_for_layout(first)
        except OSError:  # there is no descriptor, or no memory, to ask with
            self._layout = fingerprint(supervisor.system)

    def _ask_for_layout(self, first: Template) -> None:
        supervisor = self._supervisor
        boot_fd = memory_file(msgspec.msgpack.encode(supervisor.memory.boot(supervisor.children[0].spec)))
        try:
            file = os.memfd_create("layout", os.MFD_CLOEXEC)
        except OSError:
            os.close(boot_fd)
            raise

        def told(status: int | None) -> None:
            known = os.pread(file, FINGERPRINT_BYTES, 0).decode() if status == 0 else ""
            os.close(file)
            self._layout = known or fingerprint(supervisor.system)
            supervisor.changes.tell()

        first.tell_layout(boot_fd, file, told)
        os.close(boot_fd)

    # --- what the supervisor tells -------------------------------------------------------------------------------

    def died(self, child: Child, death: Death, was_up: bool) -> bool:
        """Before it is decided what follows from it; True if it is the end that was wanted."""
        if child not in self._lives or child.stopping:
            return False
        if child.restarts == self._lives[child]:
            return True
        if not (was_up or child.with_others):
            self._deaths += 1
            if not self._failure and (death.returncode > 0 or death.hung or self._deaths >= MOST_DEATHS):
                self._failure = str(death)
                self._fall_back(child)
        return False

    def _fall_back(self, child: Child) -> None:
        """The next life is as the one that was replaced."""
        child.config = self._before[child]
        child.use_templates(self._supervisor.templates[0] if self._supervisor.templates else None)

    @property
    def under_way(self) -> str:
        """What is being restarted; nothing if that is nothing."""
        return "" if self.roll is None or self.roll.done else f"a restart of {self.roll.what} is under way"

    # --- what is asked -------------------------------------------------------------------------------------------

    def begin(self, what: str, given: dict[str, Any]) -> OperationProgress:
        """Begin to replace the actors of a kind, or the one of this name, or all; CommandRefused if that cannot be."""
        supervisor = self._supervisor
        supervisor.refuse_if_busy()
        chosen = choose(supervisor.children, what)
        if not chosen:
            raise CommandRefused(f"there is no actor {what!r}; there are {', '.join(choices(supervisor.children))}")
        batches = in_batches([child for child in chosen if not child.parked])
        if not batches:
            raise CommandRefused(f"{names_of(chosen)}: nothing runs there, its engine is parked")
        configs = self._configs(chosen, given) if given else {}
        number = 1 if self.roll is None else self.roll.number + 1
        self.roll = OperationProgress(number, what, sum(map(len, batches)))
        self._task = asyncio.get_running_loop().create_task(self._run(self.roll, batches, configs))
        self._task.add_done_callback(raise_mistake)
        return self.roll

    def _configs(self, children: Sequence[Child], given: dict[str, Any]) -> dict[Child, Config]:
        launched = self._supervisor.system.config
        kinds = {child.spec.kind for child in children}
        found: dict[Child, Config] = {}
        try:
            for child in children:
                now = child.config or launched
                option_changes.check(now, kinds, given)
                found[child] = option_changes.change(launched, now, child.spec.kind, given)
        except ConfigError as error:
            raise CommandRefused(str(error)) from None
        return found

    # --- the restart ---------------------------------------------------------------------------------------------

    async def _run(
        self, roll: OperationProgress, batches: Sequence[Sequence[Child]], configs: dict[Child, Config]
    ) -> None:
        output, fresh = self._supervisor.output, None
        output.say(f"restart of {roll.what}: {roll.wanted} actors are replaced one after the other")
        failed = ""
        try:
            fresh = await self._new_templates(batches)
            for batch in batches:
                await self._replace(batch, fresh, configs)
                for child in batch:
                    roll.say(f"{child.name} is replaced (pid {child.pid})")
            for child in configs:  # also of those that are parked, once they are wanted
                child.config = configs[child]
        except OperationStopped as stopped:
            failed = str(stopped)
        except OSError as error:
            if not is_scarce(error):
                raise
            failed = f"{error.strerror}; nothing is changed"
        finally:
            self._lives.clear()
        self._keep(fresh, bool(failed))
        how = f"stops: {failed}" if failed else "is done"
        output.say(f"the restart of {roll.what} {how}", "error" if failed else "info")
        roll.end(failed)

    async def _new_templates(self, batches: Sequence[Sequence[Child]]) -> Templates | None:
        """Those that have imported the code of today, which was found fit; None where actors are started without."""
        supervisor = self._supervisor
        if not supervisor.warm:
            return None
        fresh = Templates(supervisor.output, supervisor.memory, on_trial=True)
        try:
            fresh.start()
        except OSError as error:  # some may be there; the interpreter is not, while its environment is made anew
            fresh.retire()
            raise OperationStopped(f"no new code can be started, and nothing is changed: {error}") from None
        supervisor.templates.append(fresh)
        try:
            for child in to_be_tried(batches):
                await self._try_code(fresh, child)
        except (OperationStopped, OSError):
            self._keep(fresh, failed=True)
            raise
        fresh.passed()
        return fresh

    async def _try_code(self, fresh: Templates, child: Child) -> None:
        """OperationStopped if the code that these templates have, or that this actor would import, does not fit."""
        checked: list[int | None] = []
        template = fresh.of(child.spec.kind)

        def answered(status: int | None) -> None:
            checked.append(status)
            self._supervisor.changes.tell()

        boot_fd = memory_file(msgspec.msgpack.encode(self._supervisor.memory.boot(child.spec)))
        try:
            await self._supervisor.changes.until(lambda: bool(self._layout), None)
            if template.usable:  # it may have died behind the check before
                template.check(self._layout, boot_fd, answered)
                await self._supervisor.changes.until(lambda: bool(checked), None)
        finally:
            os.close(boot_fd)
        if checked != [0]:
            raise OperationStopped(f"the code on disk cannot be used, and nothing is changed: {template.last_line}")

    def _keep(self, fresh: Templates | None, failed: bool) -> None:
        """From now on all are forked from the new templates; or from those before, if the new ones are no good."""
        supervisor = self._supervisor
        if fresh is None or fresh not in supervisor.templates:
            return
        kept = next((one for one in supervisor.templates if (one is fresh) != failed), None)
        for templates in supervisor.templates[:]:
            if templates is not kept:
                supervisor.templates.remove(templates)
                templates.retire()
        if kept is not None:
            kept.accepted()
        for child in supervisor.children:
            child.use_templates(kept)

    async def _replace(self, batch: Sequence[Child], fresh: Templates | None, configs: dict[Child, Config]) -> None:
        """End them and wait until their successors are ready; OperationStopped if they do not come up."""
        start_s = max(child.traits.start_s for child in batch) + LATE_S
        if not await self._supervisor.changes.until(lambda: all(child.up for child in batch), start_s):
            raise OperationStopped(f"{names_of(batch)} did not come up, and no successor was started")
        self._deaths, self._failure = 0, ""
        self._lives = {child: child.restarts for child in batch}
        self._before = {child: child.config for child in batch}
        for child in batch:
            child.with_others, child.group = True, list(batch)
            child.use_templates(fresh)
            child.config = configs.get(child, child.config)
        came = await self._give_way(batch, start_s)
        if self._failure:
            how = "the one before it serves again" if came else "nor did the one before it come up again"
            raise OperationStopped(f"{self._failure}; {how}")
        if not came:
            raise OperationStopped(f"{names_of(batch)}: no successor was ready after {start_s:.0f} s")

    async def _give_way(self, batch: Sequence[Child], start_s: float) -> bool:
        """Old ones go, new ones come; False if these are not ready in time. What runs on workers goes on in other
        engines meanwhile, if there are such; a scheduler's successor goes on in the same KV memory, which is sooner.
        """
        parking, until = self._supervisor.parking, self._supervisor.changes.until
        engine = batch[0].spec.engine
        is_engines = batch[0].traits.by_engine and not parking.reasons(engine)
        leaves = is_engines and batch[0].traits.computes
        try:
            if leaves:
                await parking.leave(engine)
            await self._end_all(batch)
            if leaves:
                parking.join(engine)  # its successor is not to be let go of
            came = await until(lambda: all(self._is_replaced(child) for child in batch), start_s)
        finally:
            if leaves:
                parking.join(engine)
        return came and (not is_engines or await until(lambda: parking.serves(engine), start_s))

    async def _end_all(self, batch: Sequence[Child]) -> None:
        """The first in order, others at once; all, if the server ends meanwhile: it needs the successors to drain."""
        for child in batch:
            try:
                await self._end(child, at_once=child is not batch[0])
            except OperationStopped:
                for other in batch:
                    self._supervisor.ask_to_end(other)
                raise

    def _is_replaced(self, child: Child) -> bool:
        return child.up and child.restarts > self._lives[child]

    def _is_dead(self, child: Child) -> bool:
        return child.waits or child.restarts > self._lives[child]

    async def _end(self, child: Child, at_once: bool = False) -> None:
        """End this life. It finishes what it works on, unless another can go on with that as well."""
        config = self._supervisor.system.config
        seconds = config.step_timeout if child.traits.computes else config.hang_timeout
        if child.traits.has_clients:
            self._supervisor.connections.pass_by(child.name)
            seconds = config.shutdown_timeout
            if self._can_hand_over(child):
                at_once = True
        if at_once:
            child.signal(signal.SIGKILL)
        else:
            self._supervisor.ask_to_end(child)
        if await self._supervisor.changes.until(lambda: self._is_dead(child), seconds):
            return
        self._supervisor.output.say(f"{child.name} has not ended after {seconds:g} s and is killed", "warning")
        child.signal(signal.SIGKILL)
        if not await self._supervisor.changes.until(lambda: self._is_dead(child), KILL_S):
            raise OperationStopped(f"{child.name} cannot be killed")

    def _can_hand_over(self, child: Child) -> bool:
        """Can a successor go on with all its connections, byte for byte, as after a death? Of those of gRPC, which only
        the frontend knows, it cannot.
        """
        system, memory = self._supervisor.system, self._supervisor.memory
        numbers = self._supervisor.connections.numbers(child.name)
        if memory.board.gauge(child.spec.position, FrontendGauge.GRPC_CALLS):
            return False
        if not numbers or system.config.ssl_certfile is not None:
            return not numbers
        try:
            answers = ResponseJournal(memory.files["answers"], system.files.answers, mmap.ACCESS_READ)
        except OSError as error:
            if not is_scarce(error):
                raise
            return False  # nobody can look now: it finishes what it has
        return answers.are_kept(numbers)
