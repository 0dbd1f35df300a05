"""Starts that fail once the server was ready: what is said of them, and which last too long. It decides nothing.

Where the kernel has no means another try may always go well. Whatever else it is, as an interpreter that is replaced by
an upgrade, is over within minutes; what is not must be mended by somebody, who learns of it by the server's end.
"""

from __future__ import annotations

from ..connections.descriptors import is_scarce

LONGEST_S = 600.0  # that starts may fail for another reason than scarcity
SAY_S = 60.0  # between two warnings


class FailedStarts:
    """Of one server's actors, by their names. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # when the first start failed for such a reason
        self._said: dict[str, float] = {}

    def lasts(self, name: str, error: OSError, now: float) -> bool:
        """A start of it has failed: is it of no use to try again?"""
        if is_scarce(error):
            self._since.pop(name, None)
            return False
        return now - self._since.setdefault(name, now) >= LONGEST_S

    def is_to_be_said(self, name: str, now: float) -> bool:
        """Is a warning due? It counts as said."""
        if name in self._said and now - self._said[name] < SAY_S:
            return False
        self._said[name] = now
        return True

    def is_up(self, name: str) -> None:
        """It was started."""
        self._since.pop(name, None)
        self._said.pop(name, None)
