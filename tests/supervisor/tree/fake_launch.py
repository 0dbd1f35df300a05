"""`actorserve launch` with fake actors: everything but the actors' own modules and their processes' birth is real.

They are forked by the supervisor itself, which has all their imports; a program for each takes ten times as long.

With FAKE_MISTAKE set, the supervisor itself fails when the first actor dies; with REAL_ACTORS set, actors are real;
FAKE_STOP_S is the time that actors get to end, FAKE_REST_S that of a rest. While there is a file FAKE_MISSING, there is
no interpreter; FAKE_LONGEST_S is how long that is waited for.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from actorserve.actors.cli import make_parser
from actorserve.actors.options.command_line import read_config
from actorserve.actors.runtime.process import live
from actorserve.actors.supervisor import recovery, shutdown
from actorserve.actors.supervisor.launch import launch
from actorserve.actors.supervisor.processes import child, failed_starts
from actorserve.actors.supervisor.processes.spawn import ACTOR_COMMAND, Process
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.supervisor.timeouts import STOP_S
from tests.supervisor.tree.fake_actor import play

FAKE = ("a copy of the supervisor",)


def mistake(self: Memory) -> None:
    raise RuntimeError("a mistake")


def fork(command: Sequence[str], boot_fd: int, output_fd: int, pass_fds: Sequence[int]) -> Process:
    """In place of `start_cold`: the process drops what a program that starts would not have."""
    if os.path.exists(os.environ.get("FAKE_MISSING", "")):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), sys.executable)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    return Process(pid) if pid else become_actor(boot_fd, output_fd, pass_fds)


def become_actor(boot_fd: int, output_fd: int, pass_fds: Sequence[int]) -> NoReturn:
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        for fd, standard in ((boot_fd, 0), (output_fd, 1), (output_fd, 2)):
            os.dup2(fd, standard)
        last = 2
        for fd in sorted(pass_fds):
            os.closerange(last + 1, fd)
            last = fd
        os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))
        for stream in (sys.stdout, sys.stderr):
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(write_through=True)
        logging.getLogger().handlers.clear()
        sys.excepthook = sys.__excepthook__
        live(play=play)
    finally:
        os._exit(1)


if __name__ == "__main__":
    if "FAKE_MISTAKE" in os.environ:
        Memory.wake_all = mistake  # type: ignore[method-assign]
    vars(shutdown)["STOP_S"] = float(os.environ.get("FAKE_STOP_S", STOP_S))
    vars(failed_starts)["LONGEST_S"] = float(os.environ.get("FAKE_LONGEST_S", failed_starts.LONGEST_S))
    vars(recovery)["REST_S"] = float(os.environ.get("FAKE_REST_S", recovery.REST_S))
    options = make_parser("launch").parse_args(["launch", *sys.argv[1:]])
    if "REAL_ACTORS" not in os.environ:
        vars(child)["start_cold"] = fork
    sys.exit(launch(read_config(options), command=ACTOR_COMMAND if "REAL_ACTORS" in os.environ else FAKE))
