"""How actors are started: warm, forked by the template process, or cold, by a command of their own.

The template is asked through a socket and answers in order; when there is nothing to ask, whether it is there. If it
dies, or does not answer, whoever waits for it is started cold, and another template is started, as often as any actor.
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
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from actorserve.shm.board.board import ActorState, BoardWriter

from ...protocol.kinds import TEMPLATE as NAME
from ...protocol.prefork_wire import ANSWER_BYTES, FORK, PING, Forked, ask_check, fork_descriptors, read_answer
from ..liveness import LOOK_S
from ..output import Lines, Output
from ..restart_policy import WITHIN_S, Intensity, describe

if TYPE_CHECKING:
    from ..shared_memory import Memory

PYTHON = (sys.executable, "-P", "-X", "faulthandler", "-m")  # -P: no json.py of the user's folder is taken for ours
ACTOR_COMMAND = (*PYTHON, "actorserve.actors.runtime.process")
TEMPLATE_COMMAND = (*PYTHON, "actorserve.actors.supervisor.processes.prefork")
START_S = 20.0  # what its imports may take
ANSWER_S = 3.0  # what it gets then; a fork takes milliseconds
CHECK_S = 120.0  # and the imports of a worker
PING_S = 1.0  # after so long without a question it is asked whether it is there
MOST_RESTARTS = 5  # within WITHIN_S; the next one has to wait, and actors are started cold
END_S = 10.0  # what the kernel gets to end it


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


def start_cold(command: Sequence[str], boot_fd: int, output_fd: int, pass_fds: Sequence[int]) -> Process:
    """Start a process that reads `boot_fd` and writes `output_fd`; OSError if that cannot be."""
    popen = subprocess.Popen(
        command,
        stdin=boot_fd,
        stdout=output_fd,
        stderr=output_fd,
        pass_fds=pass_fds,
        start_new_session=True,  # Ctrl-C is for the supervisor alone
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    return Process(popen.pid, popen)


class Template:
    """The supervisor's end: asks for forks, one answer each, in order."""

    def __init__(self, output: Output, memory: Memory, on_trial: bool = False) -> None:
        """One `on_trial` is not started again until it has `passed`, nor shown on the board until it is `accepted`."""
        self._output = output
        self._memory = memory
        self._on_trial = on_trial
        self._is_shown = not on_trial
        self._intensity = Intensity(MOST_RESTARTS, WITHIN_S)
        self._status: BoardWriter | None = None  # its words on the board
        self._is_up = False  # it has answered
        self._silent_s = 0.0  # for how long, by the supervisor's looks
        self._hung = ""  # why it is being killed, if it does not answer
        self._paused = False  # there is none, since it has died too often
        self.last_line = ""  # of its output
        self._process: Process | None = None
        self._control: socket.socket | None = None
        self._lines: Lines | None = None
        self._waiting: deque[tuple[float, Callable[[int | None], None]]] = deque()  # (seconds that it gets, who waits)

    @property
    def usable(self) -> bool:
        """Is there one to ask?"""
        return self._control is not None

    @property
    def is_starting(self) -> bool:
        """Are there processes of which the answer has not come yet?"""
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
            said, output_fd = os.pipe2(os.O_CLOEXEC)
            theirs_only.callback(os.close, output_fd)
            all_of_it.callback(os.close, said)
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs_only.callback(os.close, nothing)
            command = (*TEMPLATE_COMMAND, str(theirs.fileno()))
            self._process = start_cold(command, nothing, output_fd, (theirs.fileno(), *self._memory.inherited))
            all_of_it.pop_all()
        ours.setblocking(False)
        self._control = ours
        self._lines = Lines(said, self._said)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._answered)
        self._is_up, self._silent_s, self._hung, self._paused = False, 0.0, "", False
        if self._is_shown:
            self._show()
        self._ping()

    def _show(self) -> None:
        self._status = self._memory.show_template(self.pid)
        if self._is_up:
            self._status.set_state(ActorState.READY)

    def passed(self) -> None:
        """It has proved itself: from now on it may die as others do."""
        self._on_trial = False

    def accepted(self) -> None:
        """It is the server's only one from now on."""
        if not self._is_shown:
            self._is_shown = True
            if self.usable:
                self._show()

    def _said(self, line: bytes) -> None:
        self.last_line = self._output.line(NAME, line, self.pid).decode(errors="replace").strip() or self.last_line

    def ask(self, boot_fd: int, output_fd: int, channel: int | None, started: Callable[[int | None], None]) -> None:
        """Fork an actor; `started` is called with its process id, or with None if that cannot be."""
        self._send(FORK, fork_descriptors(Forked(boot_fd, output_fd, channel)), ANSWER_S, started)

    def check(self, expected: str, boot_fd: int, checked: Callable[[int | None], None]) -> None:
        """Does its code fit a server of this fingerprint? `checked` is called with 0 if so; see
        supervisor/rolling/preflight.py.
        """
        self._send(ask_check(expected), [boot_fd], CHECK_S, checked)

    def _send(self, message: bytes, fds: Sequence[int], in_s: float, answered: Callable[[int | None], None]) -> None:
        assert self._control is not None
        try:
            socket.send_fds(self._control, [message], fds)
        except OSError:  # it is dead, and that has not been seen yet
            asyncio.get_running_loop().call_soon(answered, None)
            return
        if not self._waiting:
            self._silent_s = 0.0
        self._waiting.append((in_s, answered))

    def _ping(self) -> None:
        self._send(PING, [], ANSWER_S, lambda answer: None)

    def look(self) -> None:
        """LOOK_S have passed. Kill a template that does not answer, whose socket then tells; or start the next one."""
        if self._control is None:
            if self._paused and self._may_start():
                self._start_again()
            return
        self._silent_s += LOOK_S
        if not self._waiting:
            if self._silent_s >= PING_S:
                self._ping()
            return
        limit = self._waiting[0][0] if self._is_up else max(START_S, self._waiting[0][0])
        if self._silent_s > limit and not self._hung and self._process is not None:
            self._hung = f"it has not answered for {self._silent_s:.1f} s"
            self._process.send_signal(signal.SIGKILL)

    def _answered(self) -> None:
        assert self._control is not None
        try:
            answer = self._control.recv(ANSWER_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            answer = b""
        if not answer:
            self._lost()
            return
        self._silent_s = 0.0
        if self._status is not None:
            self._status.beat()
            if not self._is_up:
                self._status.set_state(ActorState.READY)
        self._is_up = True
        _, answered = self._waiting.popleft()
        answered(read_answer(answer))

    def _lost(self) -> None:
        """It has died: those that wait are started cold, the next ones by its successor."""
        pid, hung = self.pid, self._hung
        returncode = self._end()
        cause = f"killed, since {hung}" if hung else describe(returncode)
        waiting = list(self._waiting)
        self._waiting.clear()
        again = not self._on_trial and self._may_start()
        self._paused = not again and not self._on_trial
        how = "it is started again" if again else "actors are started without it"
        if self._paused:
            how = f"it has died too often, and is started again within {WITHIN_S:.0f} s; until then {how}"
        self._output.say(f"{NAME} ended (pid {pid}, {cause}); {how}", "error")
        if again:
            self._start_again()
        for _, answered in waiting:
            answered(None)

    def _may_start(self) -> bool:
        return self._intensity.allow(asyncio.get_running_loop().time())

    def _start_again(self) -> None:
        try:
            self.start()
        except OSError as error:  # for want of descriptors or memory; nobody depends on it
            self._paused = True
            self._output.say(f"{NAME} cannot be started: {error}", "error")

    def retire(self) -> None:
        """Let go of the process for good; who still waits for it is started cold."""
        self.close()
        waiting = list(self._waiting)
        self._waiting.clear()
        for _, answered in waiting:
            answered(None)

    def close(self) -> None:
        """Let go of the process for good; it is killed."""
        self._paused = False
        self._end()

    def _end(self) -> int | None:
        """Kill the process, if it has not ended; its exit status."""
        returncode = None
        self._status = None
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            returncode = self._process.wait(END_S)
            self._process = None
        if self._lines is not None:
            while self._lines.read():
                pass
            self._lines.close()
            self._lines = None
        return returncode
