"""One actor as its supervisor sees it: the process of today, its pipe, its death. It decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from .output import Lines, Output
from .restarts import Death, Intensity

if TYPE_CHECKING:
    from ..runtime import Boot
    from ..system import ActorSpec

# -P: a file json.py in the user's folder must not become the actor's json module
ACTOR_COMMAND = (sys.executable, "-P", "-X", "faulthandler", "-m", "actorserve.actors.runtime")
LAST_READS = 64  # of 64 KiB: what is taken from a dead actor's pipe while some helper of it holds the other end
LAST_LINE = 500


class Child:
    """One actor over all its lives. Start it from the main thread: it dies with the thread that started it."""

    def __init__(self, spec: ActorSpec, output: Output, command: Sequence[str] = ACTOR_COMMAND) -> None:
        self.spec = spec
        self.name = spec.name
        self.intensity = Intensity()
        self.gone = asyncio.Event()  # no process is left and none will be started
        self.up = False  # this life has said that it is ready
        self.stopping = False  # its end is wanted
        self.restarts = -1
        self.process: subprocess.Popen[bytes] | None = None
        self._output = output
        self._command = command
        self._lines: Lines | None = None
        self._born = 0.0
        self._last_line = b""

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    @property
    def age(self) -> float:
        return time.monotonic() - self._born

    def start(self, boot: Boot, pass_fds: Sequence[int], died: Callable[[Death], None]) -> None:
        """Start a process for this actor; `died` is called once when it has ended."""
        said, says = os.pipe2(os.O_CLOEXEC)
        told = _memory_file(msgspec.msgpack.encode(boot))
        try:
            self.process = subprocess.Popen(
                self._command,
                stdin=told,
                stdout=says,
                stderr=says,
                pass_fds=pass_fds,
                start_new_session=True,  # Ctrl-C is for the supervisor alone
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except OSError:
            os.close(said)
            raise
        finally:
            os.close(says)
            os.close(told)
        self.up = False
        self.restarts += 1
        self._born = time.monotonic()
        self._last_line = b""
        self._lines = Lines(said, self._said)
        pidfd = os.pidfd_open(self.process.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._died, pidfd, died)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it lives."""
        if self.process is not None:
            self.process.send_signal(number)

    def reap(self, timeout: float) -> None:
        """Wait for the end of a killed process, whoever has seen it or not."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel still holds it: nothing more can be done
                self.process.wait(timeout)

    def _said(self, line: bytes) -> None:
        self._last_line = line[:LAST_LINE] or self._last_line
        self._output.line(self.name, line)

    def _died(self, pidfd: int, died: Callable[[Death], None]) -> None:
        assert self.process is not None and self._lines is not None
        process, lines = self.process, self._lines
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        with contextlib.suppress(ProcessLookupError):  # helpers of it; the dead leader still keeps the group's number
            os.killpg(process.pid, signal.SIGKILL)
        returncode = process.wait()
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
            )
        )


def _memory_file(content: bytes) -> int:
    """A descriptor to read `content` from: unlike a pipe it takes any length at once, and unlike argv it is private."""
    fd = os.memfd_create("boot", os.MFD_CLOEXEC)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
