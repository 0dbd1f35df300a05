"""The options that all commands share which look at a running server."""

from __future__ import annotations

import argparse


def add_server(parser: argparse.ArgumentParser) -> None:
    """Which server."""
    parser.add_argument(
        "--server",
        "--port",
        type=int,
        metavar="PORT|PID",
        help="the server with this port or process id; may be left out if there is only one",
    )
