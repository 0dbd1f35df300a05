"""When no step is computed: for work beside steps that can wait, and would take their cores and memory."""

from __future__ import annotations

import math
import time

QUIET_S = 0.05  # without a step; those of a stream follow each other sooner
PATIENCE_S = 5.0  # then one piece of the work is done under load, too


class Quiet:
    """Written by the thread that computes steps, one at a time; read by others."""

    def __init__(self) -> None:
        self._ended: float = -math.inf  # the last step, by time.monotonic(); inf: one is being computed

    def begin(self) -> None:
        """A step is computed from now on."""
        self._ended = math.inf

    def end(self) -> None:
        """The step has ended."""
        self._ended = time.monotonic()

    def wait(self) -> None:
        """Until no step has been computed for QUIET_S, but no longer than PATIENCE_S."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < min(self._ended + QUIET_S, end):
            time.sleep(QUIET_S)


QUIET = Quiet()  # a process computes one step at a time
