"""Does an actor's loop still turn? Heartbeats on the board, looked at by the supervisor's own clock.

What counts is for how many of the supervisor's looks a heartbeat stood still: a machine that slept, or a supervisor
that was stopped, makes nobody look dead. CPU time tells whether what hangs was busy or merely stopped; where there is
more to do than there are cores, together with the time for which it stood in line for one.
"""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

from actorserve.shm.board.board import ActorSnapshot, ActorState

from .connections.descriptors import is_scarce

LOOK_S = 0.25  # between two looks; each counts for no more, however late it is
BUSY = 0.5  # of the time in which the loop stood still and a core was to be had ...
LEAST = 0.1  # ... and of all that time: a healthy actor that hardly gets a core uses less
TICKS = os.sysconf("SC_CLK_TCK")


class Liveness:
    """One life of one actor. `look` every LOOK_S seconds."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._beat = -1
        self._cpu = self._queued = 0.0
        self.still_s = 0.0  # for how long the heartbeat has not moved
        self.stopped_s = 0.0  # for how long it has been stopped before it was up
        self.age_s = 0.0
        self.was_up = False

    def look(self, seen: ActorSnapshot) -> None:
        """Another LOOK_S have passed."""
        self.age_s += LOOK_S
        is_up = seen.state is not ActorState.STARTING
        begins = is_up and not self.was_up  # a start takes as long as it takes: the loop turns from now on
        self.was_up = self.was_up or is_up
        self.stopped_s = self.stopped_s + LOOK_S if not self.was_up and self.is_stopped else 0.0
        if seen.heartbeat_ns == self._beat and not begins:
            self.still_s += LOOK_S
            return
        self._beat, self.still_s = seen.heartbeat_ns, 0.0
        self._cpu, self._queued = cpu_seconds(self._pid), queued_seconds(self._pid)

    @property
    def was_busy(self) -> bool:
        """While its loop stood still the process used a core for most of the time in which it could have one. False
        where nobody could look: no request is blamed then.
        """
        used, queued = cpu_seconds(self._pid) - self._cpu, queued_seconds(self._pid) - self._queued
        return used >= max(LEAST * self.still_s, BUSY * (self.still_s - queued))

    @property
    def is_stopped(self) -> bool:
        return is_stopped(self._pid)


def oom_kills() -> int | None:
    """Processes that the kernel has killed for want of memory, of all of this machine; None if it does not say."""
    lines = (_read("/proc/vmstat") or "").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def is_stopped(pid: int) -> bool:
    """By a signal (SIGSTOP), or a debugger."""
    stat = _read(f"/proc/{pid}/stat") or ""
    return stat.rpartition(")")[2][1:2] in ("T", "t")


def is_killed_by_others(returncode: int, kills_before: int | None) -> bool:
    """Somebody sent it a signal to end: it was not the kernel, for what it did. `kills_before`: oom_kills() then."""
    asked = -returncode in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    kills = oom_kills()
    return asked or (returncode == -signal.SIGKILL and kills is not None and kills == kills_before)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process; 0 if it is gone, NaN if no descriptor is left to look."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return 0.0 if stat is not None else math.nan
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return (int(fields[11]) + int(fields[12])) / TICKS  # utime and stime (proc(5))


def queued_seconds(pid: int) -> float:
    """For how long its first thread was ready to run and had no core (the kernel's sched-stats.rst); 0 if it is gone,
    or nobody counts, NaN if no descriptor is left to look.
    """
    stat = _read(f"/proc/{pid}/schedstat")
    if not stat:
        return 0.0 if stat is not None else math.nan
    return int(stat.split()[1]) / 1e9


def _read(path: str) -> str | None:
    """A file of /proc; nothing in it if the process is gone, None if it cannot be opened now."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError as error:
        if not is_scarce(error):
            raise
        return None
