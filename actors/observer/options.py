"""The options that all commands share which look at a running server."""

from __future__ import annotations

import argparse
from typing import NamedTuple

PID = "pid:"


class Place(NamedTuple):
    """Which server: by what it listens on, or by what it is; neither: the only one."""

    port: int | None = None
    pid: int | None = None


def add_server(parser: argparse.ArgumentParser) -> None:
    """Which server."""
    parser.add_argument(
        "--server",
        "--port",
        type=_place,
        default=Place(),
        metavar="PORT|pid:PID",
        help="the server with this port, or pid: and its process id; may be left out if there is only one",
    )


def _place(text: str) -> Place:
    """A number is a port, whatever process has it for its id: a command may end what it names."""
    number = text.removeprefix(PID)
    if not (number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no port, and no process id as {PID}1234")
    return Place(pid=int(number)) if text.startswith(PID) else Place(int(number))
