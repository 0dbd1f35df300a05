"""When what happened to a slot's use: words of CLOCK_MONOTONIC ns, each in the cache line of the actor that writes it.

A stamp needs no generation: what is older than the slot's arrival belongs to an earlier use, and counts as not there.
So nothing has to be reset when a slot is opened, and no line gets a second writer. `setbacks` is a cursor like others
(table.py): generation << 32 | deaths << 16 | preemptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from ..fence import load_fence
from ..layout import LOW32
from . import layout
from .table import RequestTable

SETBACK_BITS = 16
MOST_SETBACKS = (1 << SETBACK_BITS) - 1  # of either that can be counted


class Stamp(IntEnum):
    """What happened, in its usual order; the value is its word among the control words."""

    RENDER_BEGUN = layout.RENDER_BEGUN  # the renderer
    RENDERED = layout.RENDERED
    ADMITTED = layout.ADMITTED  # the scheduler: it waits for its first step
    SCHEDULED = layout.SCHEDULED  # planned for its first step
    FIRST_TOKEN = layout.FIRST_TOKEN  # appended to the log
    LAST_TOKEN = layout.LAST_TOKEN  # the last one up to now
    FIRST_TOLD = layout.FIRST_TOLD  # the frontend: the first token was handed on to the client
    END_TOLD = layout.END_TOLD


@dataclass(frozen=True)
class Life:
    """One use of a slot, as far as it has come. Times are CLOCK_MONOTONIC ns; those that are not there yet are left
    out of `at`.
    """

    arrival: int
    at: dict[Stamp, int]
    preemptions: int  # it lost its blocks to others and was computed again
    deaths: int  # of schedulers and workers that it has survived


def setbacks(word: int, generation: int) -> tuple[int, int]:
    """(preemptions, deaths) of this use of a slot, by its word."""
    if word >> 32 != generation:
        return 0, 0
    return word & MOST_SETBACKS, word >> SETBACK_BITS & MOST_SETBACKS


def drafts(words: Sequence[int]) -> tuple[int, int]:
    """(tokens that were drafted, those accepted) in this use of a slot, by its control words. Of a step that a dead
    scheduler had half appended they are counted twice.
    """
    counts = (words[layout.DRAFTED], words[layout.ACCEPTED])
    drafted, accepted = (word & LOW32 if word >> 32 == words[layout.GENERATION] else 0 for word in counts)
    return drafted, accepted


class Stamps:
    """The stamps of all slots, for their writers and for readers."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._words = table.segment.words

    def get(self, ref: int, stamp: Stamp) -> int:
        """When it happened in the slot's latest use; 0 if it has not."""
        control = self._table.control_word(ref & LOW32)
        at = self._words[control + stamp]
        return at if at >= self._words[control + layout.ARRIVAL] else 0

    def set(self, ref: int, stamp: Stamp, now: int) -> None:
        """It happens now. The writer's alone, for the use that it was told of."""
        self._words[self._table.control_word(ref & LOW32) + stamp] = now

    def set_first(self, ref: int, stamp: Stamp, now: int) -> bool:
        """It happens now, unless it has happened before: then False. A predecessor's stamp stays."""
        if self.get(ref, stamp):
            return False
        self.set(ref, stamp, now)
        return True

    def set_back(self, ref: int, preemptions: int = 0, deaths: int = 0) -> None:
        """The scheduler's: so many more of these."""
        word = self._table.control_word(ref & LOW32) + layout.SETBACKS
        before = setbacks(self._words[word], ref >> 32)
        preemptions, deaths = min(MOST_SETBACKS, before[0] + preemptions), min(MOST_SETBACKS, before[1] + deaths)
        self._words[word] = ref >> 32 << 32 | deaths << SETBACK_BITS | preemptions

    def preemptions(self, ref: int) -> int:
        """Of this use, as its scheduler counts them."""
        return setbacks(self._words[self._table.control_word(ref & LOW32) + layout.SETBACKS], ref >> 32)[0]

    def words(self, ref: int) -> list[int]:
        """All control words of this use, at about one moment; empty if the slot has a newer one. Quicker than life."""
        control = self._table.control_word(ref & LOW32)
        words = self._words[control : control + layout.CONTROL_WORDS].tolist()
        load_fence()
        current = words[layout.GENERATION] == ref >> 32 and self._table.is_current(ref)
        return words if current else []

    def life(self, ref: int) -> Life | None:
        """All that is known of this use; None if the slot has a newer one, or never had this."""
        if not self._table.is_current(ref):
            return None
        arrival = self._table.arrival_ns(ref)
        at = {stamp: now for stamp in Stamp if (now := self.get(ref, stamp))}
        packed = self._words[self._table.control_word(ref & LOW32) + layout.SETBACKS]
        load_fence()
        if not self._table.is_current(ref) or self._table.arrival_ns(ref) != arrival:
            return None  # it was opened anew meanwhile
        return Life(arrival, at, *setbacks(packed, ref >> 32))
