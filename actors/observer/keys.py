"""Keys of the terminal, while something else is on the screen."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

ENDS = b"qQ\x04"  # the last is Ctrl-D


@contextmanager
def single_keys() -> Iterator[None]:
    """Keys come at once and are not shown; where standard input is no terminal, nothing is changed."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def ended_within(seconds: float) -> bool:
    """Wait for so long; True at once if a key says that it is enough."""
    watched = [sys.stdin] if sys.stdin.isatty() else []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select(watched, [], [], left)[0]:
            keys = os.read(sys.stdin.fileno(), 64)
            if not keys or any(key in ENDS for key in keys):
                return True
    return False
