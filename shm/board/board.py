"""The board: a few words about every actor that anyone may read, also while the actor hangs.

Layout of an actor's block, in words:
    line 0      incarnation, start (ns), how the life before ended, left << 32 | order, parked, renewals (2), rests
                the supervisor
    line 1      incarnation << 32 | state, pid, heartbeat (ns), in_flight, tries, given up     the actor
    lines 2..6  GAUGES general words, whose names are not known here     the actor
What an actor says of itself counts only if its state word carries the supervisor's incarnation: a dead one's does not.
The exceptions are for its successor: `in_flight` names what an actor works on, `tries` how many lives have begun that;
and the general words that count: a successor goes on from where its predecessor died.

The order counts for this life of an actor and those to come: one that is started behind it finds it, too. GIVE_UP is
never taken back; END is, for the successor of one that was ended to be replaced. Its writer wakes the actor behind the
store. If it dies in between, so does the whole server. `left` is how many requests the actor had when it was given.

Renewals are lives that have ended to be replaced, as they do to fall asleep or to wake: no deaths. Their number is
stored before the incarnation for which it holds, at the place of its parity: who reads an incarnation finds its number.

What is parked has no life, and none is begun, until all reasons for it are gone. They are stored before its end is
ordered: who reads `parked` of a worker that lives lets go of it now (actors/scheduler/recovery/handover.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Container
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from ..fence import load_fence, store_fence
from ..layout import LOW32, WORD_BYTES, check_place
from ..segment import Segment

INCARNATION, STARTED, ENDED, ORDER, PARKED, RENEWALS, RESTS = 0, 1, 2, 3, 4, 5, 7
STATE, PID, HEARTBEAT, IN_FLIGHT, TRIES, GIVEN_UP = 8, 9, 10, 11, 12, 13
FIRST_GAUGE, GAUGES = 16, 40
BLOCK_WORDS = FIRST_GAUGE + GAUGES


class ActorState(IntEnum):
    """What an actor says of itself."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    STOPPED = 3


READY = int(ActorState.READY)  # an attribute of an enumeration is slow to come by


class Order(IntEnum):
    """What the supervisor wants of an actor beside its work."""

    NONE = 0
    END = 1  # in order, once it has answered what it has
    GIVE_UP = 2  # the server ends at once: whoever waits for an answer is to be told so now


class Parked(IntFlag):
    """Why no life of an actor is wanted."""

    NO = 0
    SCALE = 1  # its engine is one more than are wanted
    SLEEP = 2  # all engines are to use no memory
    RESTART = 4  # for a moment: it is about to be replaced


@dataclass(frozen=True)
class ActorSnapshot:
    """One actor's words at one moment. Times are CLOCK_MONOTONIC ns; pid and heartbeat are 0 before the first one."""

    incarnation: int
    started_ns: int
    pid: int
    state: ActorState
    heartbeat_ns: int
    renewals: int = 0

    @property
    def restarts(self) -> int:
        """Lives before this one that were wanted for longer."""
        return max(0, self.incarnation - 1 - self.renewals)


def board_bytes(actors: int) -> int:
    """Bytes of a board for so many actors."""
    return actors * BLOCK_WORDS * WORD_BYTES


class Board:
    """All actors' words, and the supervisor's right to say which incarnation counts."""

    def __init__(self, segment: Segment, offset: int, actors: int) -> None:
        check_place(segment.size, offset, board_bytes(actors), f"board of {actors} actors")
        self.words = segment.words
        self.actors = actors
        self._first = offset // WORD_BYTES

    def word(self, index: int, word: int) -> int:
        """Where a word of an actor lies, as an index into `words`."""
        if not 0 <= index < self.actors:
            raise IndexError(f"there is no actor {index} among {self.actors}")
        return self._first + index * BLOCK_WORDS + word

    def snapshot(self, index: int) -> ActorSnapshot:
        """What is known of an actor; one that has not said anything yet in this incarnation is STARTING."""
        words, block = self.words, self.word(index, 0)
        incarnation, started = words[block + INCARNATION], words[block + STARTED]
        word = words[block + STATE]  # SYNC: board.state, pairs with BoardWriter.set_state
        renewals = self.renewals(index, incarnation)
        if word >> 32 != incarnation:
            return ActorSnapshot(incarnation, started, 0, ActorState.STARTING, 0, renewals)
        load_fence()
        pid, state, heartbeat = words[block + PID], ActorState(word & LOW32), words[block + HEARTBEAT]
        return ActorSnapshot(incarnation, started, pid, state, heartbeat, renewals)

    def is_ready(self, index: int) -> bool:
        """The life that counts has said that it is ready."""
        block = self.word(index, 0)
        return self.words[block + STATE] == self.words[block + INCARNATION] << 32 | READY

    def gauge(self, index: int, number: int) -> int:
        """One general word, as the actor or, until its successor starts, a dead one wrote it."""
        return self.words[self.word(index, _gauge(number))]

    def gauges(self, index: int) -> list[int]:
        first = self.word(index, FIRST_GAUGE)
        return self.words[first : first + GAUGES].tolist()

    def incarnation(self, index: int) -> int:
        """Which life of the actor counts."""
        return self.words[self.word(index, INCARNATION)]

    def in_flight(self, index: int) -> tuple[int, int]:
        """(what the actor, alive or dead, is working on; how many lives have begun it). 0 is nothing."""
        return self.words[self.word(index, IN_FLIGHT)], self.words[self.word(index, TRIES)]

    def last_heartbeat(self, index: int) -> int:
        """When the actor, or the one that was there before it, last said that it was alive; 0: never."""
        return self.words[self.word(index, HEARTBEAT)]

    def given_up(self, index: int) -> int:
        """How many requests the actor has given up in all its lives, since it died on them."""
        return self.words[self.word(index, GIVEN_UP)]

    def ended(self, index: int) -> int:
        """How the life before ended, in the supervisor's numbers; 0 for the first."""
        return self.words[self.word(index, ENDED)]

    def order(self, index: int) -> Order:
        """What the supervisor wants of the actor."""
        return Order(self.words[self.word(index, ORDER)] & LOW32)

    def left(self, index: int) -> int:
        """How many requests the actor had when it was told to give up; 0 before."""
        return self.words[self.word(index, ORDER)] >> 32

    def set_order(self, index: int, order: Order, left: int) -> None:
        """The supervisor's: to be stored before the signal that goes with it, and before a life begins."""
        self.words[self.word(index, ORDER)] = left << 32 | order

    def parked(self, index: int) -> Parked:
        """Why no life of the actor is wanted; nothing if one is."""
        return Parked(self.words[self.word(index, PARKED)])

    def is_parked(self, index: int) -> bool:
        """Is there a reason for it? As `parked`, in a fraction of the time."""
        return self.words[self.word(index, PARKED)] != 0

    def set_parked(self, index: int, why: Parked) -> None:
        """The supervisor's: to be stored before the end that follows from it, and before a life begins."""
        self.words[self.word(index, PARKED)] = why

    def rests(self, index: int) -> bool:
        """Has the actor died too often, and is its next life begun only after a while?"""
        return self.words[self.word(index, RESTS)] != 0

    def set_rests(self, index: int, rests: bool) -> None:
        """The supervisor's: once it is decided, and again before the next life."""
        self.words[self.word(index, RESTS)] = rests

    def renewals(self, index: int, incarnation: int) -> int:
        """How many lives before this one ended to be replaced."""
        return self.words[self.word(index, RENEWALS + incarnation % 2)]

    def set_renewals(self, index: int, incarnation: int, count: int) -> None:
        """The supervisor's: to be stored before that incarnation."""
        self.words[self.word(index, RENEWALS + incarnation % 2)] = count

    def set_ended(self, index: int, cause: int) -> None:
        """The supervisor's: to be stored before the incarnation that asks for it."""
        self.words[self.word(index, ENDED)] = cause

    def set_incarnation(self, index: int, incarnation: int) -> None:
        """The supervisor's: from now on only this life's words count."""
        self.set_started(index)
        store_fence()
        self.words[self.word(index, INCARNATION)] = incarnation

    def set_started(self, index: int) -> None:
        """The supervisor's: the life that counts, which has no process yet, is begun now."""
        self.words[self.word(index, STARTED)] = time.monotonic_ns()


class BoardWriter:
    """The actor's own words. It takes its predecessor's over: state STARTING, gauges 0 but for those `kept`."""

    def __init__(
        self,
        board: Board,
        index: int,
        incarnation: int | None = None,
        kept: Container[int] = frozenset(),
        pid: int | None = None,
    ) -> None:
        """`pid`: of the process that is spoken for, if that is not this one."""
        self._words = board.words
        self._incarnation = board.incarnation(index) if incarnation is None else incarnation
        self._block = board.word(index, 0)
        self._heartbeat = self._block + HEARTBEAT
        for number in range(GAUGES):
            if number not in kept:
                self.set_gauge(number, 0)
        self._words[self._block + PID] = os.getpid() if pid is None else pid
        self.beat()
        self.set_state(ActorState.STARTING)

    def set_state(self, state: ActorState) -> None:
        word = self._incarnation << 32 | state
        store_fence()
        self._words[self._block + STATE] = word  # SYNC: board.state, pairs with Board.snapshot

    def beat(self) -> None:
        """The actor's loop has turned."""
        self._words[self._heartbeat] = time.monotonic_ns()

    @property
    def in_flight(self) -> tuple[int, int]:
        """(what this actor, or its predecessor, is working on; how many lives have begun it). 0 is nothing."""
        return self._words[self._block + IN_FLIGHT], self._words[self._block + TRIES]

    def set_in_flight(self, what: int, tries: int) -> None:
        """Work on `what` begins, or ends (0). Between the stores nothing is."""
        self._words[self._block + IN_FLIGHT] = 0
        self._words[self._block + TRIES] = tries
        self._words[self._block + IN_FLIGHT] = what

    def give_up(self) -> None:
        """Count a request that is given up."""
        self._words[self._block + GIVEN_UP] += 1

    def set_gauge(self, number: int, value: int) -> None:
        self._words[self._block + _gauge(number)] = value

    def add(self, number: int, delta: int) -> None:
        self._words[self._block + _gauge(number)] += delta


def _gauge(number: int) -> int:
    """The word of a gauge within its block."""
    if not 0 <= number < GAUGES:
        raise IndexError(f"there are {GAUGES} gauges, not one of number {number}")
    return FIRST_GAUGE + number
