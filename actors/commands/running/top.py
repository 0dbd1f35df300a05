"""`actorserve top`: what a running server does, live."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ...observer.options import add_server
from ...options.config import ConfigError

if TYPE_CHECKING:
    from ...observer.attach import Attached

DESCRIPTION = """Show what a running server does, live: rates with small graphs of their past, and its actors.

It reads the server's shared memory and /proc, and writes nothing. q or Ctrl-C ends it."""
FAILED = 1
WIDE = 200  # columns where there is no terminal, so that nothing is cut


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, how often, and whether on a terminal."""
    add_server(parser)
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks (1)")
    parser.add_argument("--once", action="store_true", help="print one interval and end; needs no terminal")


def run(arguments: argparse.Namespace) -> int:
    """Show it until a key or the server's end; 1 if there is no server, or no more."""
    if not 0.05 <= arguments.interval <= 3600:
        raise ConfigError("--interval: between 0.05 and 3600 seconds")
    if not arguments.once and not sys.stdout.isatty():
        raise ConfigError("top: the output is no terminal; --once prints one interval")
    from ...chat.options import let_any_text_pass
    from ...observer.attach import AttachError, attach

    try:
        server = attach(*arguments.server)
        let_any_text_pass()
        if arguments.once:
            _once(server, arguments.interval)
        else:
            _live(server, arguments.interval)
    except AttachError as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 0
    return 0


def _once(server: Attached, interval: float) -> None:
    import time

    from rich.console import Console

    from ...observer.rates import Meter
    from ...observer.screen import screen

    meter = Meter()
    meter.add(server.look(), server.histograms())
    time.sleep(interval)
    rates = meter.add(server.look(), server.histograms())
    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)
    console.print(screen(server, meter, rates, console.width))


def _live(server: Attached, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from ...observer.keys import ended_within, single_keys
    from ...observer.rates import Meter
    from ...observer.screen import screen

    meter, console = Meter(), Console(highlight=False)
    with single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            rates = meter.add(server.look(), server.histograms())
            live.update(screen(server, meter, rates, console.width), refresh=True)
            if ended_within(interval):
                return
