"""A server's processes: started in a group of their own, waited for, and ended for sure.

This process adopts orphans, so that what a dead server leaves behind is found among its own descendants.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from .servers import Launch

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOP_S = 15.0
SAID = 1500  # characters of the end of a log
_libc = ctypes.CDLL(None, use_errno=True)


class NotStarted(Exception):
    """It did not become ready; with the end of what it said."""


def adopt_orphans() -> None:
    """To be called once, before anything is started."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def die_with_parent() -> None:
    """Runs in the child, before the program."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Running:
    """`with Running(launch, port, log, seconds) as server:`, and it answers at `server.base_url`."""

    def __init__(self, launch: Launch, port: int, log: Path, ready_s: float) -> None:
        self.base_url = f"http://127.0.0.1:{port}"
        self.ready_after_s = 0.0
        self._launch, self._log, self._ready_s = launch, log, ready_s

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Running:
        start = time.monotonic()
        self._others = set(psutil.Process().children(recursive=True))
        try:
            with self._log.open("wb") as output:
                self._process = subprocess.Popen(
                    self._launch.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_environment() | self._launch.environment,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
        except OSError as error:
            raise NotStarted(str(error)) from None
        try:
            self._wait(start + self._ready_s)
        except BaseException:
            self._end()
            raise
        self.ready_after_s = time.monotonic() - start
        return self

    def _wait(self, deadline: float) -> None:
        """Until it says so."""
        while not _answers(self.base_url + self._launch.ready):
            with suppress(subprocess.TimeoutExpired):
                raise NotStarted(f"it ended with status {self._process.wait(0.2)}:\n{self.said()}")
            if time.monotonic() > deadline:
                raise NotStarted(f"it was not ready within {self._ready_s:g} s:\n{self.said()}")

    def said(self) -> str:
        """The end of its output."""
        return self._log.read_text(errors="replace")[-SAID:]

    def _end(self) -> None:
        """SIGTERM to its group, then SIGKILL to whatever is left of it, in whichever group."""
        known = psutil.Process(self.pid).children(recursive=True) if self._process.poll() is None else []
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        rest = {*known, *psutil.Process().children(recursive=True)} - self._others
        for process in rest:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, left = psutil.wait_procs(rest, STOP_S)
        if left:
            print(f"tools/bench/peers: could not end {left}", file=sys.stderr)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()


def _environment() -> dict[str, str]:
    """Ours, without what would lead another environment's Python to our packages, and without keys: servers that found
    one would want it from clients.
    """
    ours = ("PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in ours and not name.endswith("_API_KEY")}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10.0) as response:
            return int(response.status) == 200
    except (urllib.error.HTTPError, OSError):
        return False
