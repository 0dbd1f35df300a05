"""Forked children that run a function until it returns, fails, or is killed."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

KILLED = -signal.SIGKILL


class Child:
    """One forked process; its status is 0 after a return, 1 after an exception (printed), KILLED after a kill.

    The rings must not be held by whoever forks: a claim lives as long as any copy of it.
    """

    def __init__(self, body: Callable[[], object]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                sys.settrace(None)
                body()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)

    def kill(self) -> int:
        """kill -9, then what it ended with: KILLED, unless it had ended before."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
