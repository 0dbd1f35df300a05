"""The template process: it has done the imports of the actors that use no tensors, and forks them warm.

It runs nothing else: no thread, no loop, no event loop to inherit. What it is asked on its socket stands in
protocol/prefork_wire.py. For an actor it forks twice: the one in between ends at once, so that the actor becomes the
child of the supervisor, which is the subreaper. A check (supervisor/rolling/preflight.py) is a child's, too.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import time
from typing import NoReturn

from setproctitle import setproctitle

from ...protocol.kinds import KINDS
from ...protocol.prefork_wire import (
    MOST_DESCRIPTORS,
    PING,
    REQUEST_BYTES,
    answer,
    read_check,
    read_fork_descriptors,
)
from ...runtime.process import die_with_supervisor, leave_signals_to_supervisor, live
from ..rolling.preflight import check

ALSO = ("tokenizers",)  # what actors import only once they run
ADOPTION_S = 10.0  # what the one in between gets to end
SPIN_S = 0.0002


def main() -> None:
    """Serve the socket whose descriptor the command line names, until its other end is closed."""
    supervisor = os.getppid()
    die_with_supervisor(supervisor)
    leave_signals_to_supervisor()
    setproctitle("actorserve: template")
    control = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # whoever starts waits for these imports
    for name in (*(kind.module for kind in reversed(KINDS.values()) if kind.prefork), *ALSO):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the collector of an actor does not touch, and so not copy, what all share
    gc.enable()
    while True:
        request, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, MOST_DESCRIPTORS)
        if not request:
            return
        number = _do(request, fds, supervisor, control)
        for fd in fds:
            os.close(fd)
        control.send(answer(number))


def _do(request: bytes, fds: list[int], supervisor: int, control: socket.socket) -> int:
    """What one request asks for; the number that answers it."""
    if request == PING:
        return 0
    expected = read_check(request)
    if expected is not None:
        return _check(expected, *fds)
    return _fork_twice(supervisor, control, fds)


def _check(expected: str, boot: int) -> int:
    """The exit status of a child that has looked at everything: what it imports is not for this process."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        die_with_supervisor(os.getppid())
        os.dup2(boot, 0)
        status = check(expected)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _fork_twice(supervisor: int, control: socket.socket, fds: list[int]) -> int:
    """The actor's process id; when this returns the actor is the supervisor's child."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    between = os.fork()
    if not between:
        actor = os.fork()
        if actor:
            os.write(write_end, str(actor).encode())
            os._exit(0)
        try:
            os.close(read_end)
            os.close(write_end)
            control.close()
            _live(supervisor, fds)
        finally:
            os._exit(1)
    os.close(write_end)
    os.waitpid(between, 0)
    pid = int(os.read(read_end, 32))
    os.close(read_end)
    return pid


def _live(supervisor: int, fds: list[int]) -> NoReturn:
    """The actor's whole life."""
    os.setsid()  # Ctrl-C is for the supervisor alone
    boot, output, channel = read_fork_descriptors(fds)
    os.dup2(boot, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(boot)
    os.close(output)
    deadline = time.monotonic() + ADOPTION_S
    while os.getppid() != supervisor and time.monotonic() < deadline:
        time.sleep(SPIN_S)  # nothing tells a process that it has a new parent
    live(channel)


if __name__ == "__main__":
    main()
