"""`actorserve ps`: the actors of a running server, one a line."""

from __future__ import annotations

import argparse
import sys

from ...observer.options import add_server

DESCRIPTION = """List the actors of a running server.

Everything is read from the server's shared memory and from /proc: it works whoever hangs or is stopped. `mailbox` is
how many records wait there, `bytes` their length, `oldest` the age of the oldest; `CPU %` is over an actor's life.
The template is the process that others are forked from; the relay passes on what comes by --uds, and http2 what comes
by --http2-port.
State: starting, ready, draining, ended; stopped (by SIGSTOP), hung (no heartbeat for --hang-timeout), dead."""
NO_SERVER = 1
WIDE = 200  # columns where there is no terminal, so that nothing is cut


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, and in which form."""
    add_server(parser)
    parser.add_argument("--json", action="store_true", help="all that is known, lanes and gauges included")


def run(arguments: argparse.Namespace) -> int:
    """Print it; 1 if there is no server."""
    from ...chat.options import let_any_text_pass
    from ...observer.attach import AttachError, attach

    try:
        server = attach(*arguments.server)
        let_any_text_pass()
        snapshot = server.look()
    except AttachError as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return NO_SERVER
    if arguments.json:
        from ...observer.report import as_json

        sys.stdout.buffer.write(as_json(server, snapshot) + b"\n")
        return 0
    from rich.console import Console

    from ...observer.table import actor_table, held_lines, lifetime_cpu
    from ...telemetry.adapters import adapters_words, registry_of

    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)
    console.print(actor_table(snapshot, lifetime_cpu(snapshot), console.width), *held_lines(snapshot), sep="\n")
    if (registry := registry_of(server.system, server.segment)) is not None:
        console.print(f"adapters: {adapters_words(registry.all())}")
    return 0
