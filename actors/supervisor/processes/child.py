"""One actor as its supervisor sees it: its process now, its pipe, its liveness, its death. It decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from actorserve.shm.board.board import Parked

from ...runtime.descriptors import memory_file
from ..connections.descriptors import close_all
from ..liveness import Liveness, is_killed_by_others, oom_kills
from ..output import Lines, Output
from ..restart_policy import WITHIN_S, Death, Intensity
from .spawn import ACTOR_COMMAND, Process, start_cold
from .templates import Templates

if TYPE_CHECKING:
    from ...options.config import Config
    from ...protocol.actor_spec import ActorSpec
    from ...runtime.process import Boot

LAST_READS = 64  # of 64 KiB: what is taken from a dead actor's pipe while some helper of it holds the other end
LAST_LINE = 500


class Child:
    """One actor over all its lives. Start it from the main thread: it dies with the thread that started it."""

    def __init__(
        self,
        spec: ActorSpec,
        output: Output,
        templates: Templates | None,
        max_restarts: int,
        command: Sequence[str] = ACTOR_COMMAND,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.traits = spec.traits
        self.intensity = Intensity(max_restarts, WITHIN_S)
        self.gone = asyncio.Event()  # no process is left and none will be started
        self.up = False  # this life has said that it is ready
        self.stopping = False  # its end is wanted
        self.parked = Parked.NO  # why no life of it is wanted now (supervisor/engines/parking.py)
        self.on_trial = Parked.NO  # it was parked for this, and has not been up since
        self.with_others = False  # it is ended to be started again: with one that died, or since that is wanted
        self.waits = False  # it is dead, and started again once the rest of its group is, too
        self.group: list[Child] = [self]  # those that are started again together, itself included
        self.hung = ""  # why it is being killed, if its loop stood still
        self.was_busy = self.was_stopped = False  # while its loop stood still
        self.found = 0, 0  # of this life, what was in flight when it began, and how many lives had begun that
        self.restarts = -1
        self.renewals = 0  # of them, those of lives that ended to be replaced, as they do to fall asleep
        self.config: Config | None = None  # of its next lives, where that is not the server's
        self.process: Process | None = None
        self.liveness: Liveness | None = None
        self._output = output
        self.use_templates(templates)
        self._command = command
        self._lines: Lines | None = None
        self._pending_signal: signal.Signals | None = None  # came before there was a process
        self._began = 0.0
        self._oom_kills: int | None = None  # of the machine, when this life began
        self._last_line = b""

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    @property
    def deaths(self) -> int:
        """Times that it was started again, but for those at its own wish."""
        return max(0, self.restarts - self.renewals)

    def use_templates(self, templates: Templates | None) -> None:
        """The next lives are forked from one of these, if those of its kind are."""
        self._template = templates.of(self.spec.kind) if templates is not None and self.traits.prefork else None

    @property
    def age(self) -> float:
        return time.monotonic() - self._began

    def start(
        self,
        boot: Boot,
        pass_fds: Sequence[int],
        lives: Callable[[], None],
        died: Callable[[Death], None],
        cannot: Callable[[OSError], None],
        channel: socket.socket | None = None,
    ) -> None:
        """Begin a life: `lives` is called once there is a process, and `died` when it has ended, or `cannot` if there
        will be none.

        `channel` is closed here once the process has it. OSError if not even a beginning can be made.
        """
        if self.config is not None:
            boot = msgspec.structs.replace(boot, config=self.config)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            boot_fd = memory_file(msgspec.msgpack.encode(boot))
        except OSError:
            close_all(read_end, write_end)
            raise
        self._forget_last_life(read_end)

        def started(pid: int | None) -> None:
            try:
                if pid is None:
                    self._live(start_cold(self._command, boot_fd, write_end, pass_fds), died)
                else:
                    self._live(Process(pid), died)
                lives()
            except OSError as error:
                self.restarts -= 1
                cannot(error)
            finally:
                os.close(write_end)
                os.close(boot_fd)
                if channel is not None:
                    channel.close()

        if self._template is not None and self._template.usable:
            self._template.ask(boot_fd, write_end, boot.channel, started)
        else:
            started(None)

    def _forget_last_life(self, output: int) -> None:
        """What is known of a life begins anew; the next one's lines come out of `output`."""
        self.process, self.liveness, self._pending_signal = None, None, None
        self.up, self.hung, self.was_busy, self.was_stopped = False, "", False, False
        self._oom_kills = oom_kills()
        self.restarts += 1
        self._began = time.monotonic()
        self._last_line = b""
        self._lines = Lines(output, self._take_line)

    def _live(self, process: Process, died: Callable[[Death], None]) -> None:
        self.process = process
        self.liveness = Liveness(process.pid)
        asyncio.get_running_loop().add_reader(process.pidfd, self._died, process, died)
        if self._pending_signal is not None:
            process.send_signal(self._pending_signal)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, now or as soon as there is one."""
        if self.process is None:
            self._pending_signal = number
        else:
            self.process.send_signal(number)

    def reap(self, timeout: float) -> None:
        """Wait for the end of a killed process, whoever has seen it or not."""
        if self.process is not None:
            self.process.wait(timeout)  # if the kernel still holds it, nothing more can be done

    def _take_line(self, line: bytes) -> None:
        text = self._output.line(self.name, line, self.pid)
        self._last_line = text[:LAST_LINE] or self._last_line

    def _died(self, process: Process, died: Callable[[Death], None]) -> None:
        assert self._lines is not None
        lines = self._lines
        asyncio.get_running_loop().remove_reader(process.pidfd)
        with contextlib.suppress(ProcessLookupError):  # helpers of it; the dead leader still keeps the group's number
            os.killpg(process.pid, signal.SIGKILL)
        returncode = process.wait()
        assert returncode is not None
        for _ in range(LAST_READS):
            if not lines.read():
                break
        lines.close()
        died(
            Death(
                actor=self.name,
                pid=process.pid,
                returncode=returncode,
                uptime=self.age,
                restarts=self.restarts,
                last_line=self._last_line.decode(errors="replace"),
                hung=self.hung,
                was_busy=self.was_busy,
                from_outside=self.was_stopped or (not self.hung and is_killed_by_others(returncode, self._oom_kills)),
            )
        )
