"""What frontends have begun to answer: the bytes that were handed to the kernel last, and how far each choice has come.

One record a connection, written by its frontend alone, read by its successor. Everything that is written to the
connection goes through here first, so that what the kernel did not take of it can be written by another. Layout: one
page of words, then a ring of bytes by their count in the connection's life.
    refs, seed, created   the answer that is being streamed: its slots and what its id and time are made of
    replayed              whether it is an earlier request's, too; as these, stored before refs' count
    end, choice, state    the step of the last commit: which choice it brings to which state; end is stored last
    committed             bytes that were handed over, in the count of the kernel: it makes the step count
    begun                 the value of committed before the first byte of an answer; NOBODY: the record is given up
    interim               the value of committed behind an interim answer (100 Continue) to this request
    full                  when its client was too slow for what was written, CLOCK_MONOTONIC ns; 0: it is not
    states                of the choices, then of the answer; the last step's is stored after it was committed
States are the callers' words. A death between two stores leaves a step done or not begun. An interim answer moves begun
first, then committed: in between begun is ahead, and nothing was handed over.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence

from ..fence import load_fence, store_fence
from .byte_ring import data_start, read_ring, region_bytes, region_words, write_ring, written_regions

RING = 1 << 17  # bytes: more than waits for a connection before its writer pauses
MOST_REFS = 96
ANSWER_STATES = 2  # behind those of the choices, for the answer as a whole
COMMITTED, BEGUN, COMPLETE, REFS, SEED, CREATED, CHOICE, STATE, END, FULL, INTERIM, REPLAYED = range(12)
FIRST_REF = 16
FIRST_STATE = FIRST_REF + MOST_REFS
NOBODY = (1 << 64) - 1
REGION_WORDS = region_words(RING)


class ResponseJournal:
    """Records 0 to count - 1. Numbers beyond are nobody's: nothing is kept of them."""

    def __init__(self, fd: int, count: int, access: int = mmap.ACCESS_DEFAULT) -> None:
        """`access` is of mmap, for who only looks."""
        self.count = count
        self._map = mmap.mmap(fd, count * region_bytes(RING), access=access)
        self._words = memoryview(self._map).cast("Q")

    @staticmethod
    def create(count: int) -> int:
        """The descriptor of a memory file for so many records; memory is taken when it is written."""
        fd = os.memfd_create("actorserve-answers", os.MFD_CLOEXEC)
        os.ftruncate(fd, count * region_bytes(RING))
        return fd

    # --- the connection's frontend -------------------------------------------------------------------------------

    def begin(self, number: int, written: int) -> None:
        """A new request: nothing of its answer is there. `written` is the kernel's count of bytes so far."""
        if number >= self.count:
            return
        words, first = self._words, self._first(number)
        words[first + REFS] = 0
        words[first + COMPLETE] = 0
        words[first + CHOICE] = NOBODY
        words[first + INTERIM] = NOBODY
        store_fence()
        words[first + COMMITTED] = written
        words[first + BEGUN] = written

    def interim(self, number: int, data: bytes) -> bool:
        """These bytes are about to be handed to the kernel, and are not of the answer, of which nothing is there.

        False, and nothing happens, if such were handed over for this request before.
        """
        words, first = self._words, self._first(number)
        end = words[first + COMMITTED]
        if words[first + INTERIM] == end:
            return False
        write_ring(self._map, data_start(first), RING, end, data)
        end += len(data)
        words[first + BEGUN] = end
        words[first + INTERIM] = end
        store_fence()
        words[first + COMMITTED] = end  # SYNC: answers.committed
        return True

    def stream(self, number: int, refs: Sequence[int], seed: int, created: int, replayed: bool = False) -> None:
        """What is answered now is streamed from these slots."""
        words, first = self._words, self._first(number)
        for index, ref in enumerate(refs):
            words[first + FIRST_REF + index] = ref
        for index in range(len(refs) + ANSWER_STATES):
            words[first + FIRST_STATE + index] = 0
        words[first + SEED] = seed
        words[first + CREATED] = created
        words[first + REPLAYED] = replayed
        store_fence()
        words[first + REFS] = len(refs)  # SYNC: answers.refs

    def commit(self, number: int, data: bytes, complete: bool, choice: int = NOBODY, state: int = 0) -> None:
        """These bytes are about to be handed to the kernel: they bring a choice to a state, or end the answer."""
        words, first = self._words, self._first(number)
        end = words[first + COMMITTED]
        write_ring(self._map, data_start(first), RING, end, data)
        end += len(data)
        words[first + END] = NOBODY
        words[first + CHOICE] = choice
        words[first + STATE] = state
        store_fence()
        words[first + END] = end
        if complete:
            words[first + COMPLETE] = end
        store_fence()
        words[first + COMMITTED] = end  # SYNC: answers.committed
        if choice != NOBODY:
            words[first + FIRST_STATE + choice] = state

    def set_full(self, number: int, since: int) -> None:
        """What is written now waits for the client, since then; 0: it does not."""
        if number < self.count:
            self._words[self._first(number) + FULL] = since

    def forget(self, number: int) -> None:
        """Nothing is streamed any more."""
        if number < self.count:
            self._words[self._first(number) + REFS] = 0

    def spoil(self, number: int) -> None:
        """Nobody can go on with this connection: what is written from now on is not kept."""
        first = self._first(number)
        self._words[first + COMPLETE] = 0
        self._words[first + REFS] = 0
        self._words[first + BEGUN] = NOBODY
        store_fence()
        self._words[first + COMMITTED] = 0  # SYNC: answers.committed

    # --- its successor -------------------------------------------------------------------------------------------

    def untouched(self, number: int) -> bool:
        """Nothing of an answer was handed over."""
        first = self._first(number)
        return self._words[first + COMMITTED] <= self._words[first + BEGUN] < NOBODY

    def settle(self, number: int) -> None:
        """Nothing of an answer was handed over: a predecessor's interim answer that was not committed never was."""
        first = self._first(number)
        self._words[first + BEGUN] = self._words[first + COMMITTED]

    def are_kept(self, numbers: Iterable[int]) -> bool:
        """Has each of these a record that its frontend has not given up, so that another can go on with it?"""
        return all(number < self.count and self._words[self._first(number) + BEGUN] != NOBODY for number in numbers)

    def committed(self, number: int) -> int:
        """Bytes that were handed over."""
        return self._words[self._first(number) + COMMITTED]

    def unsent(self, number: int, written: int) -> bytes | None:
        """What was handed over and the kernel did not take; None if that is no longer known."""
        first = self._first(number)
        end = self._words[first + COMMITTED]
        load_fence()
        if not end - RING <= written <= end:
            return None
        return read_ring(self._map, data_start(first), RING, written, end - written)

    def is_complete(self, number: int) -> bool:
        """All of the answer was handed over."""
        first = self._first(number)
        return self._words[first + COMPLETE] == self._words[first + COMMITTED] != 0

    def all_refs(self, fd: int) -> list[int]:
        """The slots of all streams. `fd` is the file's: to look at a record that nobody has written gives it memory."""
        records = (self.streamed(number) for number in written_regions(fd, RING, self.count))
        return [ref for found in records if found is not None for ref in found[0]]

    def full_since(self, number: int) -> int:
        """When what is written began to wait for the client; 0: it does not."""
        return self._words[self._first(number) + FULL]

    def streamed(self, number: int) -> tuple[list[int], list[int], int, int] | None:
        """(refs, states, seed, created) of the answer that is being streamed."""
        words, first = self._words, self._first(number)
        count = words[first + REFS]
        if not count:
            return None
        load_fence()
        refs = words[first + FIRST_REF : first + FIRST_REF + count].tolist()
        states = words[first + FIRST_STATE : first + FIRST_STATE + count + ANSWER_STATES].tolist()
        choice = words[first + CHOICE]
        if choice != NOBODY and words[first + END] == words[first + COMMITTED]:
            states[choice] = words[first + STATE]  # the step was committed, and its last store is missing
        return refs, states, words[first + SEED], words[first + CREATED]

    def is_replayed(self, number: int) -> bool:
        """Is the answer that is being streamed an earlier request's, too?"""
        return bool(self._words[self._first(number) + REPLAYED])

    def _first(self, number: int) -> int:
        """The record's first word."""
        return number * REGION_WORDS
