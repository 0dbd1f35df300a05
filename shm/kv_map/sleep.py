"""Whether an engine sleeps: two words, with the KV map, so that all of its actors' successors sleep, too.

The scheduler alone writes them, `since` before the state, so that who finds a sleep knows when it began. Workers read
the state when they start, and while they are parked; frontends read both. A death between the two stores leaves an
engine that is awake.
"""

from __future__ import annotations

import mmap
import time
from enum import IntFlag
from typing import NamedTuple

from .layout import HEADER_BYTES, SLEEP, SLEPT_AT

LEVELS, DRAINING, REFUSES, PARTS_AT, IDLE, UNASKED, SECONDS_AT = 3, 1 << 2, 1 << 3, 4, 1 << 6, 1 << 7, 8
MOST_SECONDS = 1 << 32


class Part(IntFlag):
    """What an engine gives back while it sleeps."""

    NONE = 0
    WEIGHTS = 1
    KV = 2
    ALL = 3


class SleepState(NamedTuple):
    """One word."""

    level: int = 0  # 1: weights stay in the system's page cache, 2: they do not; 0: awake
    asleep: Part = Part.NONE
    draining: bool = False  # it falls asleep once what has begun has ended
    refuses: bool = False  # requests that come are refused
    wait_s: int = 0  # for so long they wait
    idle: bool = False  # it fell asleep by itself, and wakes for the first of them; so until its workers are there
    unasked: bool = False  # it was that before an operator let it sleep, and is again once it is woken

    @property
    def is_parked(self) -> bool:
        """Do its workers have no model?"""
        return bool(self.asleep & Part.WEIGHTS)

    @property
    def is_on(self) -> bool:
        """Does it sleep, or is it to?"""
        return self.level > 0

    @property
    def wakes(self) -> bool:
        """Does it wake by itself, and has no worker yet?"""
        return self.idle and not self.is_on

    def packed(self) -> int:
        """As a word."""
        flags = (DRAINING if self.draining else 0) | (REFUSES if self.refuses else 0) | (IDLE if self.idle else 0)
        flags |= UNASKED if self.unasked else 0
        return self.level | flags | int(self.asleep) << PARTS_AT | self.wait_s << SECONDS_AT

    @classmethod
    def unpacked(cls, word: int) -> SleepState:
        """Of a word."""
        parts = Part(word >> PARTS_AT & Part.ALL)
        flags = bool(word & DRAINING), bool(word & REFUSES)
        return cls(word & LEVELS, parts, *flags, word >> SECONDS_AT, bool(word & IDLE), bool(word & UNASKED))


UNTIL_ASKED = SleepState(1, idle=True, wait_s=MOST_SECONDS - 1)  # it waits for nobody: who comes wakes it


class SleepWord:
    """Both words of the map at `offset` of the memory."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._header = memoryview(memory)[offset : offset + HEADER_BYTES].cast("Q")

    @property
    def state(self) -> SleepState:
        """As it was stored last."""
        return SleepState.unpacked(self._header[SLEEP])

    @state.setter
    def state(self, state: SleepState) -> None:
        if state.is_on and not self.state.is_on:
            self._header[SLEPT_AT] = time.monotonic_ns()
        self._header[SLEEP] = state.packed()

    @property
    def since_ns(self) -> int:
        """When it was asked for: CLOCK_MONOTONIC."""
        return int(self._header[SLEPT_AT])
