"""The template process: it has done the imports of the actors that use no tensors, and forks them warm.

It runs nothing else: no thread, no loop, no event loop to inherit. For each message on its socket (a Boot and an output
as descriptors, and a frontend's channel) it forks twice: the one in between ends at once, so that the actor becomes the
child of the supervisor, which is the subreaper, and the answer is the actor's process id. A message that begins with
CHECK asks whether this code fits the server (supervisor/rolling/preflight.py), and the answer is an exit status; PING
only asks for one.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import time

from setproctitle import setproctitle

from ...protocol.kinds import KINDS
from ...runtime.process import die_with_supervisor, leave_signals_to_supervisor
from ...runtime.process import main as become_actor
from ..rolling.preflight import check

ALSO = ("tokenizers",)  # what actors import only once they run
CHECK, PING = b"?", b"!"
MOST_BYTES = 128
MOST_FDS = 3
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
        message, fds, _, _ = socket.recv_fds(control, MOST_BYTES, MOST_FDS)
        if not message:
            return
        if message.startswith(CHECK):
            answer = _check(message.removeprefix(CHECK).decode(), *fds)
        elif message == PING:
            answer = 0
        else:
            answer = _fork_twice(supervisor, control, fds)
        for fd in fds:
            os.close(fd)
        control.send(str(answer).encode())


def _check(expected: str, told: int) -> int:
    """The exit status of a child that has looked at everything: what it imports is not for this process."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        die_with_supervisor(os.getppid())
        os.dup2(told, 0)
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
        status = 1
        try:
            os.close(read_end)
            os.close(write_end)
            control.close()
            status = _live(supervisor, fds)
        finally:
            os._exit(status)
    os.close(write_end)
    os.waitpid(between, 0)
    pid = int(os.read(read_end, 32))
    os.close(read_end)
    return pid


def _live(supervisor: int, fds: list[int]) -> int:
    """The actor's whole life; its exit status."""
    os.setsid()  # Ctrl-C is for the supervisor alone
    told, says, *channel = fds
    os.dup2(told, 0)
    os.dup2(says, 1)
    os.dup2(says, 2)
    os.close(told)
    os.close(says)
    deadline = time.monotonic() + ADOPTION_S
    while os.getppid() != supervisor and time.monotonic() < deadline:
        time.sleep(SPIN_S)  # nothing tells a process that it has a new parent
    try:
        become_actor(channel=channel[0] if channel else None)
        return 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    main()
