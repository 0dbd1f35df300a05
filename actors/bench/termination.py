"""A termination ends what the bench started, wherever in its code the signal arrives."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

AGAIN_S = 0.02


class Terminated(SystemExit):
    """Its code is the exit status of a process that the signal ended."""


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(128 + signal.SIGTERM)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """SIGTERM raises Terminated in the main thread.

    Python discards what a handler raises inside a finalizer or a callback from C (sys.unraisablehook is all that hears
    of it), and the process would run on: it is raised once more then, by a timer.
    """

    def discarded(what: Any) -> None:
        if what.exc_type is Terminated:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            hook(what)

    hook, sys.unraisablehook = sys.unraisablehook, discarded
    before = {number: signal.signal(number, _raise) for number in (signal.SIGTERM, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
