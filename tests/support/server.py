"""A server in processes of its own, for tests: started on a free port, watched through its output, stopped, and checked
to have left nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import psutil

from actorserve.actors.runtime.signals import die_with_parent
from tests.support.runs.original import Imports
from tests.support.warm import Copy, server_environment, start_warm

LAUNCH = (sys.executable, "-m", "actorserve", "launch")
READY = re.compile(r"ready at ((?:https?|engine)://\S+)")
FEW_DESCRIPTORS = os.path.join(os.path.dirname(__file__), "runs", "few_descriptors.py")
QUEUE = ("--max-num-queued-reqs", "256")  # room for 2,048 is 180 MB that each server would take and give back
WAIT_S = 60.0
LAST_LINES = 60  # of what it says, where a test fails
VANISH_S = 30.0  # what the kernel gets to clear away killed processes on a busy machine


class Server:
    """`with Server("--max-num-seqs", "4") as server:` and it is ready at `server.base_url`."""

    def __init__(
        self,
        *arguments: str,
        command: Sequence[str] | None = None,
        subcommand: str = "launch",
        program: str = "",
        env: dict[str, str] | None = None,
        wait: bool = True,
        imports: Imports | None = None,
    ) -> None:
        """With a command, as LAUNCH is one, or an environment that imports may read all of its code is imported anew:
        by tests of starts. A program, by its file, is run in place of the command line. `imports`: those it has at its
        start, if not all that its model will need: PLAIN where transformers takes pictures and sounds apart for a
        model, and finds no torch, as in a server of a user.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="actorserve-")  # all its processes work here, and no others
        self.lines: list[str] = []
        self._wait = wait
        self._imports = imports
        self._seen = 0
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._segments = segments()
        environment = server_environment(env)
        words = () if program or command else (subcommand,)
        given = ("--port", "0", *(QUEUE if subcommand in ("launch", "engine") else ()), *arguments)
        self.process = self._start(command, program, (*words, *given), environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(
        self, command: Sequence[str] | None, program: str, arguments: Sequence[str], environment: dict[str, str]
    ) -> Copy | subprocess.Popen[bytes]:
        if command is None:
            if warm := start_warm(program, arguments, self._folder.name, environment, self._imports):
                return warm
            command = (sys.executable, program) if program else LAUNCH[:-1]
        return subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder.name,
            env=environment,
            preexec_fn=_dies_with_run(),
        )

    # --- what it says --------------------------------------------------------------------------------------------

    def wait_for(
        self, pattern: str | re.Pattern[str], timeout: float = WAIT_S, *, since_start: bool = False
    ) -> re.Match[str]:
        """The first match in a line that no earlier wait has passed (or in any); fails with all of the output."""
        deadline = time.monotonic() + timeout
        if since_start:
            self._seen = 0
        while True:
            while self._seen < len(self.lines):
                self._seen += 1
                if found := re.search(pattern, self.lines[self._seen - 1]):
                    return found
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} within {timeout} s in:\n{self.output}") from None
            if line is None:
                self._queue.put(None)
                raise AssertionError(f"no {pattern!r} before the end in:\n{self.output}")
            self.lines.append(line)

    @property
    def output(self) -> str:
        """All that it has said so far."""
        with contextlib.suppress(queue.Empty):
            while (line := self._queue.get_nowait()) is not None:
                self.lines.append(line)
            self._queue.put(None)
        return "\n".join(self.lines)

    @property
    def last_output(self) -> str:
        """The end of that: why something has failed stands nowhere else."""
        return "\n".join(self.output.splitlines()[-LAST_LINES:])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.decode(errors="replace").rstrip("\n"))
        self._queue.put(None)

    def read_all(self) -> str:
        """Everything up to the end of the output; for a server that has ended."""
        while (line := self._queue.get(timeout=WAIT_S)) is not None:
            self.lines.append(line)
        self._queue.put(None)
        return self.output

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self.process.pid

    def pids(self) -> dict[str, int]:
        """The process ids of live actors and templates by the names in their titles."""
        found: dict[str, int] = {}
        for pid in self._pids():
            with contextlib.suppress(OSError):
                title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if title.startswith("actorserve: ") and parent(pid) == self.pid:
                    found[title.removeprefix("actorserve: ").strip()] = pid
        return found

    def actors(self) -> dict[str, int]:
        """The same without the templates, which only fork them."""
        return {name: pid for name, pid in self.pids().items() if not name.startswith("template")}

    def replace(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """An actor dies of this signal, and its next life is up: not one that an earlier line tells of."""
        pid = self.pids()[name]
        os.kill(pid, number)
        self.wait_for(rf"{re.escape(name)} ended \(pid {pid}, ")
        self.wait_for(rf"{re.escape(name)} is up")

    def processes(self) -> list[psutil.Process]:
        """Every process of this server that is alive, helpers included."""
        found = []
        for pid in self._pids():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    def _pids(self) -> Iterator[int]:
        """Those that work in its folder; one that has ended works nowhere."""
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.readlink(f"/proc/{name}/cwd") == self._folder.name:
                    yield int(name)

    # --- from start to end ---------------------------------------------------------------------------------------

    def wait_ready(self, timeout: float = WAIT_S) -> None:
        self.base_url = self.wait_for(READY, timeout)[1]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = WAIT_S) -> int:
        """The exit status."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server has not ended after {timeout} s:\n{self.output}") from None

    def stop(self, timeout: float = WAIT_S) -> int:
        """SIGTERM, and the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def check_nothing_left(self) -> None:
        """No process and no segment, a moment after the end."""
        deadline = time.monotonic() + VANISH_S
        while (left := self.processes()) and time.monotonic() < deadline:
            psutil.wait_procs(left, timeout=0.1)
        assert not left, f"processes left: {left}\n{self.output}"
        files = left_segments(self._segments)
        assert not files, f"left in /dev/shm: {files}"

    def __enter__(self) -> Server:
        if self._wait:
            try:
                self.wait_ready()
            except BaseException:
                self.__exit__(*sys.exc_info())
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            if kind is None:
                self.stop()
            else:
                self.process.kill()
                self.process.wait()
        try:
            if kind is None:
                self.check_nothing_left()
        finally:
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._reader.join(WAIT_S)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self._folder.cleanup()
            if error is not None and (said := self.last_output) not in str(error):
                error.add_note(f"The server said:\n{said}")


def _dies_with_run() -> Callable[[], None] | None:
    """What a process that is started cold does first, so that a run of the tests that is killed leaves no servers; of a
    thread it would die sooner.
    """
    return die_with_parent if threading.current_thread() is threading.main_thread() else None


def parent(pid: int) -> int:
    """Of this process (proc(5): the name before may have anything in it)."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


@contextmanager
def stopped(server: Server, name: str) -> Iterator[None]:
    """Meanwhile this actor, or template, stands still: nothing tells when it does, so its state is looked at. It may be
    killed for that, as a template is in seconds: then there is nobody to go on.
    """
    process = psutil.Process(server.pids()[name])
    process.suspend()
    try:
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
            while process.status() == psutil.STATUS_STOPPED:
                time.sleep(0.001)


def segments() -> set[str]:
    """The files in shared memory that are ours by name; live segments have none."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("actorserve")}


def left_segments(before: set[str]) -> set[str]:
    """What is new and stays: one that is being made has a name for a moment, and others run servers beside this one."""
    deadline = time.monotonic() + VANISH_S
    left = segments() - before
    while left and time.monotonic() < deadline:
        time.sleep(0.05)  # nothing tells that a file is gone
        left &= segments()
    return left
