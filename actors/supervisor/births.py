"""How actors come into being: warm, forked by the template process, or cold, by a command of their own.

The template is asked through a socket and answers in order. If it dies, or does not answer, whoever waits for it is
born cold, and another template is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

from .descriptors import PAUSE_S, is_scarce
from .output import Lines, Output

PYTHON = (sys.executable, "-P", "-X", "faulthandler", "-m")  # -P: no json.py of the user's folder is taken for ours
ACTOR_COMMAND = (*PYTHON, "actorserve.actors.runtime")
TEMPLATE_COMMAND = (*PYTHON, "actorserve.actors.supervisor.template")
CHECK = b"?"  # as template.py has it
ANSWER_S = 20.0  # what the template gets, its own imports included
CHECK_S = 120.0  # and the imports of a worker
MOST_TEMPLATES = 5  # after so many deaths of it all are born cold
NAME = "template"


class Process:
    """A child process, whoever has forked it."""

    def __init__(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        """OSError if it cannot be watched: it is killed then, and nothing is left of it."""
        self.pid = pid
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)  # nobody has waited for it yet, so that the number is its own
            if popen is not None:
                popen.wait()
            else:
                os.waitpid(pid, 0)
            raise
        self.returncode: int | None = None
        self._popen = popen  # it would reap the process if it were forgotten

    def send_signal(self, number: signal.Signals) -> None:
        """To the process, unless it has been reaped."""
        if self.returncode is None:
            signal.pidfd_send_signal(self.pidfd, number)

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit status as subprocess has it; None if it has not ended in time."""
        if self.returncode is None and select.select([self.pidfd], [], [], timeout)[0]:
            if self._popen is not None:
                self.returncode = self._popen.wait()
            else:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self.pidfd)
        return self.returncode


def born_cold(command: Sequence[str], told: int, says: int, pass_fds: Sequence[int]) -> Process:
    """Start a process that reads `told` and writes `says`; OSError if that cannot be."""
    popen = subprocess.Popen(
        command,
        stdin=told,
        stdout=says,
        stderr=says,
        pass_fds=pass_fds,
        start_new_session=True,  # Ctrl-C is for the supervisor alone
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    return Process(popen.pid, popen)


class Template:
    """The supervisor's end: asks for births, one answer each, in order."""

    def __init__(self, output: Output, shared_fds: Sequence[int], deaths: int = 0) -> None:
        """`deaths`: how many of those that it may die are taken as died."""
        self._output = output
        self._shared_fds = shared_fds  # what every actor inherits under its number
        self.last_line = ""  # of its output
        self._process: Process | None = None
        self._control: socket.socket | None = None
        self._lines: Lines | None = None
        self._waiting: deque[tuple[float, Callable[[int | None], None]]] = deque()
        self._deaths = deaths
        self._again: asyncio.TimerHandle | None = None  # a start that is to come, when the kernel had no means

    @property
    def usable(self) -> bool:
        """Is there one to ask?"""
        return self._control is not None

    @property
    def in_labour(self) -> bool:
        """Are there processes that nobody has been told of?"""
        return bool(self._waiting)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the process; OSError if that cannot be."""
        with contextlib.ExitStack() as theirs_only, contextlib.ExitStack() as all_of_it:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs_only.enter_context(theirs)
            all_of_it.enter_context(ours)
            said, says = os.pipe2(os.O_CLOEXEC)
            theirs_only.callback(os.close, says)
            all_of_it.callback(os.close, said)
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs_only.callback(os.close, nothing)
            command = (*TEMPLATE_COMMAND, str(theirs.fileno()))
            self._process = born_cold(command, nothing, says, (theirs.fileno(), *self._shared_fds))
            all_of_it.pop_all()
        ours.setblocking(False)
        self._control = ours
        self._lines = Lines(said, self._said)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._answered)

    def _said(self, line: bytes) -> None:
        self.last_line = self._output.line(NAME, line, self.pid).decode(errors="replace").strip() or self.last_line

    def ask(self, told: int, says: int, channel: int | None, born: Callable[[int | None], None]) -> None:
        """Fork an actor; `born` is called with its process id, or with None if that cannot be."""
        self._send(b".", [told, says, *([] if channel is None else [channel])], time.monotonic() + ANSWER_S, born)

    def check(self, expected: str, told: int, checked: Callable[[int | None], None]) -> None:
        """Does its code fit a server of this fingerprint? `checked` is called with 0 if so; see preflight.py."""
        self._send(CHECK + expected.encode(), [told], time.monotonic() + CHECK_S, checked)

    def _send(self, message: bytes, fds: Sequence[int], until: float, answered: Callable[[int | None], None]) -> None:
        assert self._control is not None
        try:
            socket.send_fds(self._control, [message], fds)
        except OSError:  # it is dead, and that has not been seen yet
            asyncio.get_running_loop().call_soon(answered, None)
            return
        self._waiting.append((until, answered))

    def forgive(self) -> None:
        """It has proved itself: from now on it may die as often as any."""
        self._deaths = 0

    def look(self) -> None:
        """Kill a template that does not answer; its socket then tells."""
        if self._waiting and time.monotonic() > self._waiting[0][0] and self._process is not None:
            self._process.send_signal(signal.SIGKILL)

    def _answered(self) -> None:
        assert self._control is not None
        try:
            answer = self._control.recv(32)
        except BlockingIOError:
            return
        except ConnectionError:
            answer = b""
        if answer:
            _, answered = self._waiting.popleft()
            answered(int(answer))
        else:
            self._lost()

    def _lost(self) -> None:
        """It has died: the waiting are born cold, the next ones by its successor."""
        self.close()
        self._deaths += 1
        self._output.say(f"{NAME} ended; actors are started without it until there is another")
        waiting = list(self._waiting)
        self._waiting.clear()
        if self._deaths < MOST_TEMPLATES:
            self._start_again()
        for _, answered in waiting:
            answered(None)

    def _start_again(self) -> None:
        """Now, or as soon as the kernel has the means."""
        self._again = None
        try:
            self.start()
        except OSError as error:
            if not is_scarce(error):
                raise
            self._again = asyncio.get_running_loop().call_later(PAUSE_S, self._start_again)

    def retire(self) -> None:
        """Let go of the process for good; who still waits for it is born cold."""
        self.close()
        waiting = list(self._waiting)
        self._waiting.clear()
        for _, answered in waiting:
            answered(None)

    def close(self) -> None:
        """Let go of the process; it ends with its socket, or is killed."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(ANSWER_S)
            self._process = None
        if self._lines is not None:
            while self._lines.read():
                pass
            self._lines.close()
            self._lines = None
