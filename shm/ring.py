"""One single-producer single-consumer ring of byte records: a lane between two actors.

Layout, in bytes from the ring's offset (positions are monotonic byte counts, one writer a word):
    0    magic, capacity                                           whoever takes an end first
    64   W, end of what is published; L, start of the last record  the producer
    128  R, end of what was processed                              the consumer
    192  data[capacity]
A record is a header word `sequence << 32 | length`, the payload, and padding to 8 bytes. It never wraps: where it does
not fit before the end, a header of length 0xffffffff says that it stands at the start.

If the producer dies before the store of W, nothing was sent, and its successor overwrites what lies beyond W. If it dies
between L and W, L points beyond W and names the sequence that is still to be used. A record never overwrites the one at
L, so that the next sequence can always be read. If the consumer dies before the store of R, the record comes again.
"""

from __future__ import annotations

import fcntl
import os
import struct

from .fence import store_fence
from .segment import Segment

MAGIC = 0x31474E4952535341  # "ASSRING1"
CAPACITY, WRITTEN, LAST, READ, DATA = 1, 8, 9, 16, 24  # in words
HEADER_BYTES = DATA * 8
WRAP = 0xFFFFFFFF
MAX_SEQUENCE = 0xFFFFFFFF
PRODUCER_LOCK, CONSUMER_LOCK = WRITTEN * 8, READ * 8


class RingBusy(RuntimeError):
    """The other taker of this end is alive."""


class RingCorrupt(RuntimeError):
    """What is read is not what a producer writes."""


def ring_bytes(capacity: int) -> int:
    """Bytes of a ring with `capacity` (a multiple of 64) bytes of data."""
    if capacity <= 0 or capacity % 64:
        raise ValueError(f"a ring's capacity is a multiple of 64, not {capacity}")
    return HEADER_BYTES + capacity


class _End:
    """What both ends have in common: the claim, by a lock that the kernel releases when its process dies."""

    def __init__(self, segment: Segment, offset: int, capacity: int, lock: int) -> None:
        ring_bytes(capacity)
        self._lock_fd = segment.reopen()
        claim = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, offset + lock, 8, 0)
        try:
            fcntl.fcntl(self._lock_fd, fcntl.F_OFD_SETLK, claim)
        except OSError:
            os.close(self._lock_fd)
            raise RingBusy(f"the ring at {offset} has a {type(self).__name__.lower()} already") from None
        self._map = segment.map
        self._words = segment.words
        self._base = offset // 8
        self._data = offset + HEADER_BYTES
        self._capacity = capacity
        self._check_header()

    def _check_header(self) -> None:
        words, base = self._words, self._base
        if words[base] == 0:
            words[base + CAPACITY] = self._capacity
            store_fence()
            words[base] = MAGIC
        if words[base] != MAGIC or words[base + CAPACITY] != self._capacity:
            raise RingCorrupt(f"no ring of {self._capacity} bytes lies here")

    @property
    def words(self) -> memoryview[int]:
        """The words of the ring's segment."""
        return self._words

    def close(self) -> None:
        """Give the end up; another may take it."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


class Producer(_End):
    """The sending end."""

    def __init__(self, segment: Segment, offset: int, capacity: int) -> None:
        super().__init__(segment, offset, capacity, PRODUCER_LOCK)
        words, base = self._words, self._base
        self._w = base + WRITTEN
        self._l = base + LAST
        self._r = base + READ
        self._written = words[self._w]
        self._last = words[self._l]
        self._read = words[self._r]
        self.sequence = self._next_sequence()

    @property
    def max_payload(self) -> int:
        """A payload up to this always fits once the consumer has read everything."""
        return self._capacity // 3 - 16

    def _next_sequence(self) -> int:
        """The record at L was the last; if it lies beyond W it was never published, and its sequence is still free."""
        if self._written == 0:
            return 0
        header = self._words[(self._data + self._last % self._capacity) // 8]
        sequence = header >> 32
        return sequence if self._last >= self._written else (sequence + 1) & MAX_SEQUENCE

    def try_send(self, payload: bytes | bytearray | memoryview) -> bool:
        """Publish one record; False when there is no room now. ValueError for one that never has room."""
        length = len(payload)
        if length > self.max_payload:
            raise ValueError(f"{length} bytes are more than a record's {self.max_payload}")
        need = (length + 15) & ~7
        written, capacity = self._written, self._capacity
        at = written % capacity
        start = written if at + need <= capacity else written + capacity - at
        end = start + need
        if end - min(self._read, self._last) > capacity:
            self._read = self._words[self._r]  # SYNC: ring.consume, pairs with Consumer.commit
            if end - min(self._read, self._last) > capacity:
                return False
        words, header = self._words, self.sequence << 32
        if start != written:
            words[(self._data + at) // 8] = header | WRAP
        place = self._data + start % capacity
        words[place // 8] = header | length
        self._map[place + 8 : place + 8 + length] = payload
        store_fence()
        words[self._l] = start
        store_fence()
        words[self._w] = end  # SYNC: ring.publish, pairs with Consumer.receive
        self._last, self._written = start, end
        self.sequence = (self.sequence + 1) & MAX_SEQUENCE
        return True


class Consumer(_End):
    """The receiving end: `receive` any number of records, then `commit` them all."""

    def __init__(self, segment: Segment, offset: int, capacity: int) -> None:
        super().__init__(segment, offset, capacity, CONSUMER_LOCK)
        self._w = self._base + WRITTEN
        self._r = self._base + READ
        self._committed = self._next = self._words[self._r]
        self._sequence: int | None = None  # of the record before, once one was read

    def pending(self) -> bool:
        """Is there a record that was not received?"""
        return self._words[self._w] != self._next  # SYNC: ring.publish

    @property
    def depth(self) -> int:
        """Bytes that were published and not committed."""
        return self._words[self._w] - self._committed

    def receive(self) -> bytes | None:
        """The next record, or None."""
        words = self._words
        written = words[self._w]  # SYNC: ring.publish, pairs with Producer.try_send
        position = self._next
        if written == position:
            return None
        store_fence()
        capacity = self._capacity
        place = self._data + position % capacity
        header = words[place // 8]
        if header & WRAP == WRAP:
            position += capacity - position % capacity
            place = self._data
            header = words[place // 8]
        length, sequence = header & WRAP, header >> 32
        end = position + ((length + 15) & ~7)
        expected = sequence if self._sequence is None else (self._sequence + 1) & MAX_SEQUENCE
        if end > written or length > capacity or sequence != expected:
            raise RingCorrupt(f"record {sequence} of {length} bytes at {position}, expected {expected} up to {written}")
        self._sequence = sequence
        self._next = end
        return self._map[place + 8 : place + 8 + length]

    def commit(self) -> None:
        """Everything received is processed: its room is free."""
        if self._next != self._committed:
            store_fence()
            self._words[self._r] = self._next  # SYNC: ring.consume, pairs with Producer.try_send
            self._committed = self._next
