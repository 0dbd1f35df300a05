"""A template process in which somebody is killed right behind a fork: who, the environment says."""

from __future__ import annotations

import os
import signal

from actorserve.actors.supervisor.processes import prefork

VICTIM = "TEST_VICTIM"
_fork, _template = os.fork, os.getpid()


def fork() -> int:
    """As the system's; the process in between has its victim, once it has forked."""
    pid = _fork()
    if pid and os.getpid() != _template:
        victim = os.environ[VICTIM]
        os.kill(pid if victim == "forked" else _template, signal.SIGKILL)
        if victim == "stopped":  # beside the template
            os.kill(pid, signal.SIGSTOP)
    return pid


if __name__ == "__main__":
    prefork.os.fork = fork  # type: ignore[attr-defined]
    prefork.main()
