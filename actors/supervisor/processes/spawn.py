"""A child process, and how one is started cold, by a command of its own; templates.py starts warm ones."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

PYTHON = (sys.executable, "-P", "-X", "faulthandler", "-m")  # -P: no json.py of the user's folder is taken for ours
ACTOR_COMMAND = (*PYTHON, "actorserve.actors.runtime.process")


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
