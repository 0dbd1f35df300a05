"""When an actor may be started again, and the one shape in which every death is reported. Nothing is started here."""

from __future__ import annotations

import signal
from collections import deque

import msgspec

from ..runtime.in_flight import Ended

WITHIN_S = 60.0  # in which one actor may be started again --max-restarts times; then the failure goes up


class Intensity:
    """How often one actor was restarted of late."""

    def __init__(self, most: int, within: float) -> None:
        self._most = most
        self._within = within
        self._times: deque[float] = deque()

    def allow(self, now: float) -> bool:
        """Count one restart; False if that is one too many."""
        while self._times and self._times[0] <= now - self._within:
            self._times.popleft()
        if len(self._times) >= self._most:
            return False
        self._times.append(now)
        return True


def describe(returncode: int | None) -> str:
    """How a process ended, of which that is the status as subprocess has it; None: it has not."""
    if returncode is None:
        return "still there"
    return f"killed by {signal.Signals(-returncode).name}" if returncode < 0 else f"exit status {returncode}"


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one actor process, wanted or not."""

    actor: str
    pid: int
    returncode: int  # as subprocess has it: a signal's number is negative
    uptime: float  # seconds
    restarts: int  # of this actor before this death
    last_line: str = ""  # of its output
    hung: str = ""  # why the supervisor killed it, if it did
    was_busy: bool = False  # it burned CPU while its loop stood still
    from_outside: bool = False  # somebody else killed or stopped it, for reasons of his own

    def how(self, wanted: bool) -> Ended:
        """What the successor is told. `wanted`: it was to be replaced; if it failed all the same, it was not that."""
        if self.from_outside and not wanted:
            return Ended.OUTSIDE
        if self.hung:
            return Ended.HUNG if self.was_busy else Ended.DIED
        in_order = self.returncode in (0, -signal.SIGTERM, -signal.SIGKILL)
        return Ended.REPLACED if wanted and in_order else Ended.DIED

    @property
    def cause(self) -> str:
        if self.hung:
            return f"killed, since {self.hung}"
        return describe(self.returncode)

    def __str__(self) -> str:
        facts = f"pid {self.pid}, {self.cause}, up {self.uptime:.1f} s, {self.restarts} restarts before"
        said = f": {self.last_line}" if self.returncode > 0 and self.last_line else ""  # most often its exception
        return f"{self.actor} ended ({facts}){said}"
