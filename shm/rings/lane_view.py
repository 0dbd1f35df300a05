"""A lane as anyone may read it from outside, also while both of its ends stand still. It writes nothing.

What lies between R and W is not overwritten before R moves. So R is read first and once more at the end: if it has not
moved, all that was read between is true; if it has, everything is read again, a few times. A lane with several readers
is seen as one of them has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..fence import load_fence
from ..layout import LOW32, WORD_BYTES, check_place
from ..segment import Segment
from .mailbox import stamp_of
from .ring import LAST, MAGIC, WRAP, WRITTEN, header_bytes, read_word, ring_bytes

TRIES = 16  # a consumer that commits between every two of them is not waited for
STAMP_BYTES = 16  # the head of a record, in which its stamp lies


@dataclass(frozen=True)
class LaneView:
    """One lane at one moment. What is not committed waits, also while it is being handled."""

    sent_bytes: int  # since the server's start, headers included
    sent_records: int  # modulo 2**32
    waiting_bytes: int
    waiting_records: int
    oldest_ns: int | None  # CLOCK_MONOTONIC of the oldest waiting record's publication


EMPTY = LaneView(0, 0, 0, 0, None)


def view_lane(segment: Segment, offset: int, capacity: int, readers: int = 1, reader: int = 0) -> LaneView | None:
    """The lane's ring lies at `offset`; None if it moved too fast to be read, or is no ring."""
    check_place(segment.size, offset, ring_bytes(capacity, readers), f"ring of {capacity} bytes")
    words, base = segment.words, offset // WORD_BYTES
    if words[base] == 0:
        return EMPTY  # no producer was there yet
    if words[base] != MAGIC:
        return None
    own, data = base + read_word(reader, readers), offset + header_bytes(readers)
    for _ in range(TRIES):
        read = words[own]
        load_fence()
        view = _view(segment, base, data, capacity, read)
        load_fence()
        if view is not None and words[own] == read:  # SYNC: ring.consume, pairs with Consumer.commit
            return view
    return None


def _view(segment: Segment, base: int, data: int, capacity: int, read: int) -> LaneView | None:
    """What is true if the consumer stands at `read` all the while; None if the producer was met between its stores."""
    words = segment.words
    written = words[base + WRITTEN]  # SYNC: ring.publish, pairs with Producer.try_send
    load_fence()
    last = words[base + LAST]
    load_fence()
    if words[base + WRITTEN] != written or not 0 <= written - read <= capacity:
        return None
    sent = last >> 32 if last & LOW32 == written & LOW32 else ((last >> 32) - 1) & LOW32
    if written == read:
        return LaneView(written, sent, 0, 0, None)
    place = data + read % capacity
    header = words[place >> 3]
    if header & LOW32 == WRAP:
        place = data
        header = words[place >> 3]
    stamp = stamp_of(segment.map[place + 8 : place + 8 + min(header & LOW32, STAMP_BYTES)])
    return LaneView(written, sent, written - read, (sent - (header >> 32) + 1) & LOW32, stamp)
