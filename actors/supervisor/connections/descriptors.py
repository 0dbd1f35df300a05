"""Open files: how many a server needs beside its clients' connections, and what is done while none is to be had.

The supervisor holds every connection, so it needs the most. Counted at rest, with every actor up:
    standard streams, event loop, signals, listener, control socket, segment, memory files, their description   24
    for each actor its eventfd, its process and what it says; for each frontend a channel; for each template three
and while all of them are started at once, their boot files and the other ends of their output, and a channel's. Beside
that there are other templates, clients of the control socket, and what is opened for a moment: SPARE. A frontend that
had all connections would have less beside them: 24, an eventfd for each actor and a lock for each end of a lane.

The limit may be lowered while the server runs, and the whole machine may have none left. Then whatever needs one is
tried again later; what is there goes on.
"""

from __future__ import annotations

import errno
import os
import resource

from ...options.config import ConfigError
from ...protocol.topology import System

AT_REST = 24  # with the first template
SPARE = 48
EACH_ACTOR, EACH_FRONTEND, EACH_TEMPLATE = 5, 2, 3
LEAST_CONNECTIONS = 8  # with room for fewer it is not worth a start
PAUSE_S = 0.1  # before another try
SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN})


def is_scarce(error: OSError) -> bool:
    """The kernel has no descriptor, memory or process left for this now: another try may go well."""
    return error.errno in SCARCE


def own_descriptors(system: System) -> int:
    """What the supervisor may come to need beside connections."""
    others = EACH_FRONTEND * len(system.with_clients) + EACH_TEMPLATE * len(system.own_templates)
    return AT_REST + SPARE + EACH_ACTOR * len(system.actors) + others


def most_connections(system: System, beside: int) -> int:
    """How many connections there may be; ConfigError if the limit of open files leaves too few for any server.

    `beside`: descriptors of connections that are not counted among them.
    """
    wanted, needed = system.config.max_connections, own_descriptors(system) + beside
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    least = needed + min(wanted, LEAST_CONNECTIONS)
    if soft < least:
        what = f"{len(system.actors)} actors and {min(wanted, LEAST_CONNECTIONS)} connections need {least} open files"
        raise ConfigError(f"{what}, and the limit (ulimit -n) is {soft}: raise it, or start fewer actors")
    return min(wanted, soft - needed)


def close_all(*fds: int) -> None:
    """After something else could not be had."""
    for fd in fds:
        os.close(fd)
