"""Does an actor's loop still turn? Heartbeats on the board, looked at by the supervisor's own clock.

What counts is for how many of the supervisor's looks a heartbeat stood still: a machine that slept, or a supervisor
that was stopped, makes nobody look dead. CPU time tells whether what hangs was busy or merely stopped.
"""

from __future__ import annotations

import os
from pathlib import Path

from actorserve.shm.board import ActorSnapshot, ActorState

LOOK_S = 0.25  # between two looks; each counts for no more, however late it is
BUSY = 0.5  # of the time in which the loop stood still
TICKS = os.sysconf("SC_CLK_TCK")


class Pulse:
    """One life of one actor. `look` every LOOK_S seconds."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._beat = -1
        self._cpu = 0.0
        self.still_s = 0.0  # for how long the heartbeat has not moved
        self.age_s = 0.0
        self.was_up = False

    def look(self, seen: ActorSnapshot) -> None:
        """Another LOOK_S have passed."""
        self.age_s += LOOK_S
        self.was_up = self.was_up or seen.state is not ActorState.STARTING
        if seen.heartbeat_ns == self._beat:
            self.still_s += LOOK_S
            return
        self._beat, self.still_s, self._cpu = seen.heartbeat_ns, 0.0, cpu_seconds(self._pid)

    @property
    def was_busy(self) -> bool:
        """While its loop stood still the process used a core for most of the time."""
        return cpu_seconds(self._pid) - self._cpu >= BUSY * self.still_s


def cpu_seconds(pid: int) -> float:
    """User and system time of a process; 0 if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return 0.0
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return (int(fields[11]) + int(fields[12])) / TICKS  # utime and stime (proc(5))
