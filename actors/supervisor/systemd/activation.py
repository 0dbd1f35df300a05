"""Listening sockets that a service manager has opened and keeps (sd_listen_fds(3)).

They outlive this process: who connects while the service is started again waits in the kernel's queue.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from ..listeners import ListenError, prepare

FIRST_FD = 3
VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


def take_sockets(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """Those that were passed to this process; none if there is no such manager. ListenError for what cannot be."""
    count, pid, _ = (environ.pop(name, "") for name in VARIABLES)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    return [take_one(fd) for fd in range(FIRST_FD, FIRST_FD + int(count))]


def take_one(fd: int) -> socket.socket:
    """This descriptor as a listening socket of ours."""
    os.set_inheritable(fd, False)
    try:
        listener = socket.socket(fileno=fd)
    except OSError as error:
        raise ListenError(f"descriptor {fd} of LISTEN_FDS is no socket: {error.strerror}") from None
    internet = listener.family in (socket.AF_INET, socket.AF_INET6)
    if not internet or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ListenError(f"descriptor {fd} of LISTEN_FDS is no listening TCP socket (ListenStream=HOST:PORT)")
    prepare(listener)
    return listener
