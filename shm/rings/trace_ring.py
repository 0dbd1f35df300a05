"""What an actor did last: a ring of events in shared memory, which outlives the actor and is read by anyone.

Layout: one cache line, word 0 = events written since the server's start; then the events, four words each: when
(CLOCK_MONOTONIC ns) | kind and a small number | two numbers. What the kinds are is the callers' business.

The actor alone writes, and never waits: the oldest events are overwritten. While event `n` is being written, word 0 is
`n`, and event `n - EVENTS` may be half gone. So a reader copies all, reads word 0 again, and drops what may have been
overwritten meanwhile. A death between two stores loses the event that was being written, and no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from ..fence import load_fence, store_fence
from ..layout import CACHE_LINE, WORD_BYTES, check_place
from ..segment import Segment

EVENTS = 1 << 14  # that are kept of an actor
EVENT = Struct("<QQQQ")
EVENT_BYTES = EVENT.size
KIND_BITS = 8


def trace_bytes() -> int:
    """Bytes of one actor's ring."""
    return CACHE_LINE + EVENTS * EVENT_BYTES


@dataclass(frozen=True)
class Event:
    """One event."""

    at_ns: int
    kind: int
    small: int  # below 2**56
    first: int
    second: int


class TraceWriter:
    """The actor's own; it goes on behind its predecessor's last event."""

    def __init__(self, segment: Segment, offset: int) -> None:
        self._words, self._map = segment.words, segment.map
        self._count_word = _checked(segment, offset) // WORD_BYTES
        self._first = offset + CACHE_LINE
        self._count = self._words[self._count_word]
        self._pack = EVENT.pack_into

    def add(self, at_ns: int, kind: int, first: int, second: int = 0, small: int = 0) -> None:
        """It happened then. Numbers are not negative."""
        count = self._count
        place = self._first + count % EVENTS * EVENT_BYTES
        self._pack(self._map, place, at_ns, kind | small << KIND_BITS, first, second)
        self._count = count = count + 1
        store_fence()
        self._words[self._count_word] = count  # SYNC: trace.count, pairs with read_trace


def read_trace(segment: Segment, offset: int) -> list[Event]:
    """What is there, the oldest event first."""
    word, first = _checked(segment, offset) // WORD_BYTES, offset + CACHE_LINE
    end = segment.words[word]  # SYNC: trace.count
    load_fence()
    copy = segment.map[first : first + EVENTS * EVENT_BYTES]
    load_fence()
    begin = max(0, segment.words[word] + 1 - EVENTS)  # the writer may be at the one before it
    events = []
    for number in range(begin, end):
        at_ns, packed, one, other = EVENT.unpack_from(copy, number % EVENTS * EVENT_BYTES)
        events.append(Event(at_ns, packed & (1 << KIND_BITS) - 1, packed >> KIND_BITS, one, other))
    return events


def _checked(segment: Segment, offset: int) -> int:
    check_place(segment.size, offset, trace_bytes(), "trace")
    return offset
