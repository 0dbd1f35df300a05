"""The board: a few words about every actor that anyone may read, also while the actor hangs.

Layout of an actor's block, in words:
    line 0      incarnation, start (ns)                                      the supervisor
    line 1      pid, state, heartbeat (ns), incarnation that wrote them      the actor
    lines 2..5  GAUGES general words; actors/gauges.py names them            the actor
An actor is what its own line says only if that line carries the supervisor's incarnation: a dead actor's does not.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from enum import IntEnum

from .fence import store_fence
from .segment import Segment

INCARNATION, STARTED = 0, 1
PID, STATE, HEARTBEAT, OWN_INCARNATION = 8, 9, 10, 11
FIRST_GAUGE, GAUGES = 16, 32
BLOCK_WORDS = FIRST_GAUGE + GAUGES


class ActorState(IntEnum):
    """What an actor says of itself."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    STOPPED = 3


@dataclass(frozen=True)
class ActorSnapshot:
    """One actor's words at one moment. Times are CLOCK_MONOTONIC nanoseconds."""

    incarnation: int
    started_ns: int
    pid: int
    state: ActorState
    heartbeat_ns: int


def board_bytes(actors: int) -> int:
    """Bytes of a board for so many actors."""
    return actors * BLOCK_WORDS * 8


class Board:
    """Read access to all actors' words."""

    def __init__(self, segment: Segment, offset: int, actors: int) -> None:
        self.words = segment.words
        self.actors = actors
        self._first = offset // 8

    def word(self, index: int, word: int) -> int:
        """Where a word of an actor lies, as an index into `words`."""
        return self._first + index * BLOCK_WORDS + word

    def snapshot(self, index: int) -> ActorSnapshot:
        """What is known of an actor; one that has not said anything yet in this incarnation is STARTING."""
        incarnation, started = (self.words[self.word(index, word)] for word in (INCARNATION, STARTED))
        pid, state, heartbeat, own = (
            self.words[self.word(index, word)] for word in (PID, STATE, HEARTBEAT, OWN_INCARNATION)
        )
        if own != incarnation:
            return ActorSnapshot(incarnation, started, 0, ActorState.STARTING, 0)
        return ActorSnapshot(incarnation, started, pid, ActorState(state), heartbeat)

    def gauge(self, index: int, number: int) -> int:
        return self.words[self.word(index, FIRST_GAUGE + number)]

    def gauges(self, index: int) -> list[int]:
        first = self.word(index, FIRST_GAUGE)
        return self.words[first : first + GAUGES].tolist()

    def incarnation(self, index: int) -> int:
        """Which life of the actor counts."""
        return self.words[self.word(index, INCARNATION)]

    def is_ready(self, index: int) -> bool:
        """The life that counts has said that it is ready."""
        return self.snapshot(index).state is ActorState.READY

    def set_incarnation(self, index: int, incarnation: int) -> None:
        """The supervisor's: from now on only this life's words count."""
        self.words[self.word(index, STARTED)] = time.monotonic_ns()
        store_fence()
        self.words[self.word(index, INCARNATION)] = incarnation


class BoardWriter:
    """The actor's own words. It takes over the block from its predecessor: state STARTING, gauges 0."""

    def __init__(self, board: Board, index: int, incarnation: int) -> None:
        self._words = board.words
        self._state = board.word(index, STATE)
        self._heartbeat = board.word(index, HEARTBEAT)
        self._gauges = board.word(index, FIRST_GAUGE)
        for number in range(GAUGES):
            self._words[self._gauges + number] = 0
        self._words[self._state] = ActorState.STARTING
        self._words[board.word(index, PID)] = os.getpid()
        self.beat()
        store_fence()
        self._words[board.word(index, OWN_INCARNATION)] = incarnation

    def set_state(self, state: ActorState) -> None:
        self._words[self._state] = state

    def beat(self) -> None:
        """The actor's loop has turned."""
        self._words[self._heartbeat] = time.monotonic_ns()

    def set_gauge(self, number: int, value: int) -> None:
        self._words[self._gauges + number] = value

    def add(self, number: int, delta: int) -> None:
        self._words[self._gauges + number] += delta
