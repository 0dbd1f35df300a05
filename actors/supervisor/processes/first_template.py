"""The first template, forked by the supervisor before it has an event loop."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple

from ..connections.descriptors import close_all
from .spawn import Process

if TYPE_CHECKING:
    from ..shared_memory import Memory


class Ends(NamedTuple):
    """A template that was forked before there was an event loop, and the supervisor's ends of its socket and output."""

    process: Process
    control: socket.socket
    said: int


def fork_first(memory: Memory) -> Ends | None:
    """The first template as a copy of this process, which has imported a part of what it needs; None if that cannot be:
    another thread may hold any lock, and a copy of it would hold it for good.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        return None
    supervisor = os.getpid()
    with contextlib.ExitStack() as made:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            made.callback(ours.close)
            made.callback(theirs.close)
            said, output_fd = os.pipe2(os.O_CLOEXEC)
            made.callback(close_all, said, output_fd)
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if not pid:
                from .prefork import take_over

                take_over(supervisor, theirs.fileno(), output_fd, memory.inherited)
            process = Process(pid)
        except OSError:  # it is started cold, or why not is said there
            return None
        made.pop_all()
    theirs.close()
    os.close(output_fd)
    return Ends(process, ours, said)
