"""When the phases of a start ended: a few words of each process, read by anyone while it starts and ever after.

Layout, in words:
    0        began: CLOCK_MONOTONIC ns                  the process; for an actor, what the board calls its start
    1..15    when phase 0, 1 … ended; 0: not yet        the process
A phase lasts from the end of the one before it, in the order of their ends, so that all of them together are the whole
start. Which phases there are is not known here.
"""

from __future__ import annotations

from ..fence import load_fence, store_fence
from ..layout import WORD_BYTES
from ..segment import Segment

BEGAN, FIRST_END = 0, 1
WORDS = 16
PHASES = WORDS - FIRST_END


def phases_bytes() -> int:
    """Bytes of one process's words."""
    return WORDS * WORD_BYTES


class PhaseWriter:
    """The words of the process that starts. What an earlier life wrote is gone before this one's beginning stands."""

    def __init__(self, segment: Segment, offset: int, began: int) -> None:
        self._words = segment.words
        self._first = offset // WORD_BYTES
        self._words[self._first + BEGAN] = 0
        store_fence()
        for number in range(PHASES):
            self._words[self._first + FIRST_END + number] = 0
        store_fence()
        self._words[self._first + BEGAN] = began  # SYNC: phases.began, pairs with read_phases

    def end(self, number: int, now: int) -> None:
        """A phase has ended now, or goes on until now if it had ended before."""
        if not 0 <= number < PHASES:
            raise IndexError(f"there are {PHASES} phases, not one of number {number}")
        self._words[self._first + FIRST_END + number] = now


def read_phases(segment: Segment, offset: int, began: int | None = None) -> dict[int, int]:
    """How long each phase that has ended took, ns, in the order of their ends.

    Empty if they are of another life than the one that began at `began`.
    """
    words, first = segment.words, offset // WORD_BYTES
    start = words[first + BEGAN]  # SYNC: phases.began, pairs with PhaseWriter
    load_fence()
    ends = words[first + FIRST_END : first + WORDS].tolist()
    load_fence()
    if not start or words[first + BEGAN] != start or (began is not None and began != start):
        return {}
    took, last = {}, start
    for end, number in sorted((end, number) for number, end in enumerate(ends) if end):
        took[number] = end - last
        last = end
    return took
