"""`actorserve trace`: the last seconds of a running server, for a trace viewer."""

from __future__ import annotations

import argparse
import math
import sys

from ...observer.options import add_server
from ...options.config import ConfigError

DESCRIPTION = """Write what the actors did in the last seconds as a trace in Chrome's JSON, which Perfetto opens.

Each actor is a track with its turns and steps; arrows are the messages between them; the last moments of actors that
died are there, too. It is read from the server's shared memory, which always holds the last 16,384 events of each
actor: nothing has to be switched on before, and it works whoever hangs or is stopped."""
FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, how much, and where to."""
    parser.add_argument(
        "-o", "--output", default="trace.json", metavar="FILE", help="to write (trace.json); - is stdout"
    )
    parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="as far back as this (10)")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write it; 1 if there is no server, or the file cannot be written."""
    import time

    import msgspec

    from ...observer.attach import AttachError, attach
    from ...observer.trace import make_trace

    if not 0 < arguments.seconds < math.inf:
        raise ConfigError("--seconds: a number over 0")
    since_ns = time.monotonic_ns() - int(arguments.seconds * 1e9)
    try:
        made = make_trace(attach(*arguments.server), since_ns)
    except AttachError as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return FAILED
    content = msgspec.json.encode(made)
    if arguments.output == "-":
        sys.stdout.buffer.write(content)
        return 0
    try:
        with open(arguments.output, "wb") as file:
            file.write(content)
    except OSError as error:
        print(f"actorserve: error: {arguments.output}: {error.strerror}", file=sys.stderr)
        return FAILED
    print(f"{len(made['traceEvents']):,} events in {arguments.output}: https://ui.perfetto.dev opens it")
    return 0
