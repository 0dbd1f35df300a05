"""The supervisor's end of one template process: it asks for forks, and gets one answer each, in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from actorserve.shm.board.board import ActorState, BoardWriter

from ...protocol.sockets.prefork_wire import FORK, LAYOUT, Forked, ask_branch, ask_check, fork_descriptors
from ..connections.descriptors import close_all
from ..liveness import LOOK_S, is_killed_by_others, is_stopped, oom_kills
from ..output import Lines, Output
from ..restart_policy import WITHIN_S, Intensity, describe
from .first_template import Ends
from .questions import ANSWER_S, Question, Questions
from .spawn import PYTHON, Process, start_cold

if TYPE_CHECKING:
    from ...protocol.actor_spec import ActorSpec
    from ..shared_memory import Memory

COMMAND = (*PYTHON, "actorserve.actors.supervisor.processes.prefork")
START_S, OWN_START_S = 20.0, 600.0  # what its imports may take; early ones, of torch, come from a slow disk perhaps
CHECK_S = 120.0  # and the imports of a worker
PING_S = 1.0  # after so long without a question it is asked whether it is there
MOST_RESTARTS = 5  # within WITHIN_S; the next one has to wait, and actors are started cold
AGAIN_S = 1.0  # between two starts of one that others kill: it is no worse for that, and who dies meanwhile needs it
END_S = 10.0  # what the kernel gets to end it


class Branch(NamedTuple):
    """How a template of a kind's own comes to be."""

    kind: str
    parent: Template
    modules: list[str]  # that it imports beside those of the kind


class Template:
    """The supervisor's end of one: asks for forks, one answer each, in order."""

    def __init__(
        self,
        output: Output,
        memory: Memory,
        spec: ActorSpec,
        on_trial: bool = False,
        branch: Branch | None = None,
        born: Ends | None = None,
    ) -> None:
        self._output = output
        self._memory = memory
        self._spec = spec
        self._on_trial = on_trial
        self._branch = branch
        self._born = born  # until it is taken up
        self._is_shown = not on_trial
        self._intensity, self._intensity_of_kills = Intensity(MOST_RESTARTS, WITHIN_S), Intensity(1, AGAIN_S)
        self._oom_kills: int | None = None  # of the machine, when this life began
        self._was_killed = False  # the last one, by others
        self._status: BoardWriter | None = None  # its words on the board
        self._stopped_s = 0.0  # before it is up
        self._hung = ""  # why it is being killed, if it does not answer
        self._dying_s = 0.0  # for how long
        self._paused = False  # there is none, since it has died too often
        self.last_line = ""  # of its output
        self._process: Process | None = None
        self._questions: Questions | None = None
        self._lines: Lines | None = None

    @property
    def usable(self) -> bool:
        """Is there one to ask?"""
        return self._questions is not None

    @property
    def is_starting(self) -> bool:
        """Are there processes of which the answer has not come yet?"""
        return self._questions is not None and self._questions.first is not None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    # --- its life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; OSError if that cannot be."""
        born, self._born = self._born, None
        if born is not None:
            self._process = born.process
            self._listen(born.control, born.said)
            self._show()
            return
        with contextlib.ExitStack() as made:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            made.callback(ours.close)
            made.callback(theirs.close)
            said, output_fd = os.pipe2(os.O_CLOEXEC)
            made.callback(close_all, said, output_fd)
            if self._branch is None or not self._branch.parent.usable:
                self._process = self._start_cold(theirs, output_fd)
            made.pop_all()
        self._listen(ours, said)
        if self._process is not None:
            self._begun(theirs, output_fd)
        else:
            self._fork(theirs, output_fd)

    def _listen(self, control: socket.socket, said: int) -> None:
        """To what this life answers and says."""
        self._questions = Questions(control, self._heard, self._lost)
        self._lines = Lines(said, self._said)
        self._hung, self._paused, self._stopped_s = "", False, 0.0
        self._oom_kills = oom_kills()

    def _start_cold(self, theirs: socket.socket, output_fd: int) -> Process:
        kind = [] if self._branch is None else [self._branch.kind, *self._branch.modules]
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            command = (*COMMAND, str(theirs.fileno()), *kind)
            return start_cold(command, nothing, output_fd, (theirs.fileno(), *self._memory.inherited))
        finally:
            os.close(nothing)

    def _fork(self, theirs: socket.socket, output_fd: int) -> None:
        """Have the first template fork it."""
        assert self._branch is not None
        life = self._questions

        def forked(pid: int | None) -> None:
            try:
                process = Process(pid) if pid is not None else None
                if self._questions is not life:  # it is not wanted any more
                    if process is not None:
                        _kill(process)
                    close_all(output_fd)
                    theirs.close()
                    return
                self._process = process or self._start_cold(theirs, output_fd)
            except OSError as error:
                self._output.say(f"{self._spec.name} cannot be started: {error}", "error")
            self._begun(theirs, output_fd)  # without a process its socket says so

        self._branch.parent.branch(self._branch, theirs.fileno(), output_fd, forked)

    def _begun(self, theirs: socket.socket, output_fd: int) -> None:
        """The process has its ends, and there is nobody else who has."""
        theirs.close()
        os.close(output_fd)
        if self._is_shown and self._process is not None:
            self._show()

    def _show(self) -> None:
        self._status = self._memory.show_beside(self._spec, self.pid)
        self._show_state()

    def _show_state(self) -> None:
        if self._status is not None and self._questions is not None and self._questions.is_up:
            self._status.set_state(ActorState.READY)

    def _heard(self) -> None:
        """It has answered."""
        if self._status is not None:
            self._status.beat()
            self._show_state()

    def passed(self) -> None:
        """It has proved itself: from now on it may die as others do."""
        self._on_trial = False
        self._paused = not self.usable

    def accepted(self) -> None:
        """It is the server's only one from now on."""
        if not self._is_shown:
            self._is_shown = True
            if self._process is not None:
                self._show()

    def _said(self, line: bytes) -> None:
        said = self._output.line(self._spec.name, line, self.pid)
        self.last_line = said.decode(errors="replace").strip() or self.last_line

    # --- what it is asked ----------------------------------------------------------------------------------------

    def ask(self, boot_fd: int, output_fd: int, channel: int | None, started: Callable[[int | None], None]) -> None:
        """Fork an actor; `started` is called with its process id, or with None if that cannot be."""
        fds = fork_descriptors(Forked(boot_fd, output_fd, channel))
        self._ask(FORK, fds, Question(ANSWER_S, started, True))

    def branch(self, wanted: Branch, control_fd: int, output_fd: int, started: Callable[[int | None], None]) -> None:
        """Fork the template of a kind's own; as `ask`, but that it does not wait for the imports of this one."""
        message = ask_branch(wanted.kind, wanted.modules)
        self._ask(message, [control_fd, output_fd], Question(ANSWER_S, started, False))

    def check(self, expected: str, boot_fd: int, checked: Callable[[int | None], None]) -> None:
        """Does its code fit a server of this fingerprint? `checked` is called with 0 if so; see
        supervisor/rolling/preflight.py.
        """
        self._ask(ask_check(expected), [boot_fd], Question(CHECK_S, checked, True))

    def tell_layout(self, boot_fd: int, into: int, told: Callable[[int | None], None]) -> None:
        """Have the fingerprint of its code written there; `told` is called with 0 once it is."""
        self._ask(LAYOUT, [boot_fd, into], Question(CHECK_S, told, True))

    def _ask(self, message: bytes, fds: Sequence[int], question: Question) -> None:
        assert self._questions is not None, "it is usable"
        self._questions.ask(message, fds, question)

    def look(self) -> None:
        """LOOK_S have passed. Kill a template that does not answer, whose socket then tells; or start the next one."""
        questions = self._questions
        if questions is None:
            if self._paused and self._may_start():
                self._start_again()
            return
        questions.silent_s += LOOK_S
        if questions.first is None:
            if questions.silent_s >= PING_S:
                questions.ping()
            return
        start_s = START_S if self._branch is None else OWN_START_S
        limit = questions.first.in_s if questions.is_up else max(start_s, questions.first.in_s)
        if self._hung:
            self._dying_s += LOOK_S
            if self._dying_s > ANSWER_S:
                self._lost()  # what it has forked holds the socket, and is stopped; its answer will fail, and it ends
        elif self._process is not None and (reason := self._why_hung(questions, self._process.pid, limit)):
            self._hung, self._dying_s = reason, 0.0
            self._process.send_signal(signal.SIGKILL)

    def _why_hung(self, questions: Questions, pid: int, limit: float) -> str:
        """Why it must be killed, or nothing. Its imports may take long, but not those of one that does nothing."""
        self._stopped_s = self._stopped_s + LOOK_S if not questions.is_up and is_stopped(pid) else 0.0
        if self._stopped_s > ANSWER_S:
            return f"it was stopped for {self._stopped_s:.1f} s while it started"
        return f"it has not answered for {questions.silent_s:.1f} s" if questions.silent_s > limit else ""

    # --- its death -----------------------------------------------------------------------------------------------

    def _lost(self) -> None:
        """It has died: those that wait are started cold, the next ones by its successor."""
        name, pid, hung = self._spec.name, self.pid, self._hung
        returncode, waiting = self._end()
        cause = f"killed, since {hung}" if hung else describe(returncode)
        self._was_killed = not hung and returncode is not None and is_killed_by_others(returncode, self._oom_kills)
        again = not self._on_trial and self._may_start()
        self._paused = not again and not self._on_trial
        how = "it is started again" if again else "actors are started without it"
        if self._paused:
            within_s = AGAIN_S if self._was_killed else WITHIN_S
            how = f"it has died too often, and is started again within {within_s:.0f} s; until then {how}"
        self._output.say(f"{name} ended (pid {pid}, {cause}); {how}", "error")
        if again:
            self._start_again()
        for question in waiting:
            question.answered(None)

    def _may_start(self) -> bool:
        intensity = self._intensity_of_kills if self._was_killed else self._intensity
        return intensity.allow(asyncio.get_running_loop().time())

    def _start_again(self) -> None:
        try:
            self.start()
        except OSError as error:  # for want of descriptors or memory; nobody depends on it
            self._paused = True
            self._output.say(f"{self._spec.name} cannot be started: {error}", "error")

    def retire(self) -> None:
        """Let go of the process for good; who still waits for it is started cold."""
        for question in self.close():
            question.answered(None)

    def close(self) -> list[Question]:
        """Let go of the process for good; it is killed. What it has not answered."""
        self._paused = False
        return self._end()[1]

    def _end(self) -> tuple[int | None, list[Question]]:
        """Kill the process, if it has not ended; its exit status, and what it has not answered."""
        returncode = None
        self._status = None
        questions, self._questions = self._questions, None
        waiting = questions.close() if questions is not None else []
        if self._process is not None:
            returncode = _kill(self._process)
            self._process = None
        if self._lines is not None:
            while self._lines.read():
                pass
            self._lines.close()
            self._lines = None
        return returncode, waiting


def _kill(process: Process) -> int | None:
    process.send_signal(signal.SIGKILL)
    return process.wait(END_S)
