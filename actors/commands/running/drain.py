"""`actorserve drain`: a running server ends once its requests have."""

from __future__ import annotations

import argparse
import math
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from ...observer.options import add_server
from ...options.config import ConfigError

if TYPE_CHECKING:
    from ...observer.attach import RunningServer
    from ...observer.ending import Ending

DESCRIPTION = """Let a running server end, as SIGTERM does: it takes no new connections, says `Connection: close` in its
answers, and ends with status 0 when no request runs any more.

Prints how many are left, until the server has ended; one that ends already is followed, and gets no more than --timeout
from now on. The status is 1 if requests were cut off: time was up, or a signal
ended the server before."""
FAILED = 1
LOOK_S = 0.1  # between two looks at what is left
ANSWER_S = 30.0
LATE_S = 30.0  # beyond what the server takes itself, which it may be stopped or hang in


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long, and which server."""
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="how long running requests may take; what the server's --shutdown-timeout says if left out",
    )
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 once the server has ended, with all of its requests."""
    from ...observer.ask import AskError, ask
    from ...observer.attach import AttachError, choose, find_servers
    from ...observer.ending import watch_ending
    from ...protocol.sockets.control_wire import DRAIN, DrainRequest

    if arguments.timeout is not None and not 0 <= arguments.timeout < math.inf:
        raise ConfigError("--timeout: a number of seconds, 0 or more")
    try:
        server = choose(find_servers(), *arguments.server)
        process = os.pidfd_open(server.pid)
        ending = watch_ending(server)
        asked = time.monotonic()
        begun = ask(server, DRAIN, DrainRequest(arguments.timeout), ANSWER_S)
    except (AttachError, AskError, ProcessLookupError) as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return FAILED
    limit = "waits for its requests" if begun.seconds is None else f"has {begun.seconds:g} s"
    print(f"the server on {server} takes no more, and {limit}", flush=True)
    over = math.inf if begun.seconds is None else asked + begun.seconds  # which is before the server's time is up
    return _follow(server, process, ending, begun.requests, over)


def _follow(server: RunningServer, process: int, ending: Ending | None, left: int, over: float) -> int:
    """Say how many are left until it has ended; the status. `over`: when what still runs is cut off. `ending`: whether
    it was; None, where the time alone tells, of a server of another version.
    """
    from ...observer.ask import AskError, ask
    from ...protocol.sockets.control_wire import LEFT, NoArguments
    from ...supervisor.timeouts import stop_seconds

    if left:
        print(f"{_requests(left)} left", flush=True)
    while not select.select([process], [], [], LOOK_S)[0]:
        if time.monotonic() >= over:  # what ends from here on is cut off
            if time.monotonic() < over + stop_seconds(0) + LATE_S:
                continue
            print(f"actorserve: error: the server on {server} has not ended", file=sys.stderr)
            return FAILED
        try:
            now = ask(server, LEFT, NoArguments(), ANSWER_S).requests
        except AskError:  # it ends at this moment, which the next look tells
            continue
        cut = time.monotonic() >= over or (ending is not None and ending.gives_up)
        if now != left and not cut:  # later, those may be gone that were cut off
            left = now
            print(f"{_requests(left)} left", flush=True)
    os.close(process)
    is_late = time.monotonic() >= over
    if cut_off := (left if is_late else 0) if ending is None else ending.cut_off:
        why = "time was up" if is_late else "the server was ended"
        print(f"actorserve: error: {why} with {_requests(cut_off)} left, cut off", file=sys.stderr)
        return FAILED
    print("the server has ended")
    return 0


def _requests(count: int) -> str:
    return f"{count} request{'s' * (count != 1)}"
