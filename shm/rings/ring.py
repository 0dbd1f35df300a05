"""A ring of byte records, a lane between actors: one producer, and one consumer or several that all get everything.

Layout, in 64-bit words from the ring's offset, a cache line for each writer. Positions are byte counts that only grow.
    0, 1   magic, capacity                                  the producer, once
    2      readers beside the first                         the producer, once
    8      W, end of what is published                      the producer
    9      L, the last record: sequence << 32 | its end mod 2**32      the producer
    16     R, end of what is processed                      the consumer
    24     the second reader's R, if there is one, and so on, a cache line for each
           data[capacity], behind the last R                the producer
A record is a header word `sequence << 32 | length`, the payload, and padding to 8 bytes. It never wraps: where it does
not fit before the end, a header of length 0xffffffff says that it stands at the start.

What a death leaves behind, by the stores in their order: header and payload, L, W.
    before W    nothing was sent: the successor writes over what lies beyond W. L tells whether its sequence is used:
                if the end that it names is not W, its record was never published
    before R    what was received and not committed is delivered again
Each of several readers has a claim and an R of its own, and goes on there if it dies and comes again. What is sent is
kept until all have processed it. So one that stands still or is away lets the ring become full, and from then on the
producer has no room and the others get nothing new (a mailbox's Outbox keeps what is posted). It is not passed over,
since it would miss records: whoever sees that it is still must end it and start it again.
No end keeps a copy of its own words, so that an exception in the middle leaves nothing wrong in the object either.
"""

from __future__ import annotations

from ..end_lock import EndLock, RingBusy
from ..fence import load_fence, store_fence
from ..layout import CACHE_LINE, LINE_WORDS, LOW32, WORD_BYTES, check_place
from ..segment import Segment

__all__ = ["Consumer", "Producer", "RingBusy", "RingCorrupt", "ring_bytes"]

MAGIC = 0x31474E4952544341  # "ACTRING1"
CAPACITY, OTHERS, WRITTEN, LAST, READ = 1, 2, 8, 9, 16  # in words from the magic
READER_WORDS = LINE_WORDS  # from one R to the next
SEQUENCE = LOW32 << 32
WRAP = LOW32  # as a length: the record stands at the start of the data
MAX_CAPACITY = 1 << 31  # so that L's 32 bits tell every end from W
ANY = -1  # no sequence: whichever comes first is right

_closed = memoryview(bytes(8)).cast("Q")
_closed.release()  # the words of an end that was closed: using them raises ValueError


class RingCorrupt(RuntimeError):
    """What is read is not what a producer writes."""


def header_bytes(readers: int = 1) -> int:
    """Bytes of a ring before its data."""
    if readers < 1:
        raise ValueError(f"a ring has at least one reader, not {readers}")
    return WORD_BYTES * (READ + READER_WORDS * readers)


def ring_bytes(capacity: int, readers: int = 1) -> int:
    """Bytes of a ring with `capacity` bytes of data, a multiple of 64 (so that rings can lie one after the other)."""
    if not 0 < capacity <= MAX_CAPACITY or capacity % CACHE_LINE:
        raise ValueError(f"a ring's capacity is a multiple of {CACHE_LINE} up to {MAX_CAPACITY}, not {capacity}")
    return header_bytes(readers) + capacity


def read_word(reader: int, readers: int) -> int:
    """Where a reader's R lies, in words from the magic."""
    if not 0 <= reader < readers:
        raise ValueError(f"a ring of {readers} has no reader {reader}")
    return READ + READER_WORDS * reader


class _End:
    """What both ends have in common: the claim, and where the words are."""

    def __init__(self, segment: Segment, offset: int, capacity: int, readers: int, own_word: int) -> None:
        check_place(segment.size, offset, ring_bytes(capacity, readers), f"ring of {capacity} bytes")
        what = f"the {type(self).__name__.lower()} of the ring at {offset}"
        if own_word > READ:
            what = f"reader {(own_word - READ) // READER_WORDS}: {what}"
        self._end_lock = EndLock(segment, offset + WORD_BYTES * own_word, what)
        self._map = segment.map
        self._words = segment.words
        self._capacity = capacity
        self._readers = readers
        self._base = offset // WORD_BYTES
        self._data = offset + header_bytes(readers)
        self._w, self._l = self._base + WRITTEN, self._base + LAST

    @property
    def words(self) -> memoryview[int]:
        """The words of the ring's segment."""
        return self._words

    def _check_header(self, *reads: int) -> None:
        """RingCorrupt unless such a ring lies here, with W within reach of these R's (given by their words)."""
        words, base = self._words, self._base
        magic, capacity, readers = words[base], words[base + CAPACITY], words[base + OTHERS] + 1
        if magic != MAGIC or capacity != self._capacity:
            raise RingCorrupt(f"no ring of {self._capacity} bytes lies here: magic {magic:x}, capacity {capacity}")
        if readers != self._readers:
            raise RingCorrupt(f"the ring that lies here has {readers} readers, not {self._readers}")
        written = words[self._w]
        for read in (words[word] for word in reads):
            if not read <= written <= read + capacity:
                raise RingCorrupt(f"{read} was read, {written} written, in a ring of {capacity} bytes")

    def close(self) -> None:
        """Give the end up; another may take it. Using it afterwards raises ValueError."""
        self._words = _closed
        self._end_lock.close()


class Producer(_End):
    """The sending end."""

    def __init__(self, segment: Segment, offset: int, capacity: int, readers: int = 1) -> None:
        super().__init__(segment, offset, capacity, readers, WRITTEN)
        words = self._words
        if words[self._base] == 0:
            words[self._base + CAPACITY] = capacity
            words[self._base + OTHERS] = readers - 1
            store_fence()
            words[self._base] = MAGIC
        self._reads = [self._base + read_word(reader, readers) for reader in range(readers)]
        self._check_header(*self._reads)
        self._read = self._slowest()  # all readers are at least here
        self.max_payload = capacity // 2 - 8  # wherever W stands, it fits once the consumer has read everything

    @property
    def sequence(self) -> int:
        """The sequence of the last published record, which is how many there were (modulo 2**32)."""
        written, last = self._words[self._w], self._words[self._l]
        return last >> 32 if last & LOW32 == written & LOW32 else ((last >> 32) - 1) & LOW32

    def try_send(self, payload: bytes | bytearray | memoryview) -> bool:
        """Publish one record of bytes; False when there is no room now, ValueError for one that may never have room."""
        length = len(payload)
        if length > self.max_payload:
            raise ValueError(f"{length} bytes are more than this ring takes, which is {self.max_payload}")
        words, capacity = self._words, self._capacity
        written, last = words[self._w], words[self._l]
        at = written % capacity
        need = (length + 15) & ~7
        skipped = 0 if at + need <= capacity else capacity - at
        end = written + skipped + need
        if end - self._read > capacity:
            self._read = self._slowest()
            load_fence()
            if end - self._read > capacity:
                return False
        header = last & SEQUENCE  # the sequence after L's, or L's own if that record was never published
        if last & LOW32 == written & LOW32:
            header = (header + (1 << 32)) & SEQUENCE
        place = self._data + at
        if skipped:
            words[place >> 3] = header | WRAP
            place = self._data
        words[place >> 3] = header | length
        self._map[place + 8 : place + 8 + length] = payload
        store_fence()
        words[self._l] = header | end & LOW32
        store_fence()
        words[self._w] = end  # SYNC: ring.publish, pairs with Consumer.receive and pending
        return True

    def _slowest(self) -> int:
        """What every reader has processed."""
        return min(map(self._words.__getitem__, self._reads))  # SYNC: ring.consume, pairs with Consumer.commit


class Consumer(_End):
    """A receiving end: `receive` any number of records, then `commit` them all, or `rewind` to receive them again."""

    def __init__(self, segment: Segment, offset: int, capacity: int, readers: int = 1, reader: int = 0) -> None:
        own_word = read_word(reader, readers)
        super().__init__(segment, offset, capacity, readers, own_word)
        self._r = self._base + own_word
        if self._words[self._base]:  # else no producer was ever there
            self._check_header(self._r)
        self._data_end = self._data + capacity
        self.rewind()

    def rewind(self) -> None:
        """Forget what was received since the last commit: it comes again."""
        self._next = self._words[self._r]
        self._sequence = ANY  # of the record at `_next`

    def pending(self) -> bool:
        """Is there a record that was not received?"""
        return self._words[self._w] != self._next  # SYNC: ring.publish, pairs with Producer.try_send

    @property
    def position(self) -> int:
        """The end of what was received."""
        return self._next

    @property
    def depth(self) -> int:
        """Bytes that were published and not received."""
        return self._words[self._w] - self._next

    def receive(self) -> bytes | None:
        """The next record, or None. RingCorrupt, and nothing is received, if it is not what a producer writes."""
        words, position = self._words, self._next
        written = words[self._w]  # SYNC: ring.publish, pairs with Producer.try_send
        if written == position:
            return None
        load_fence()
        place = self._data + position % self._capacity
        header = words[place >> 3]
        if header & LOW32 == WRAP:
            position += self._data_end - place
            place = self._data
            header = words[place >> 3]
        first = place + 8
        last = first + (header & LOW32)
        end = position + (((header & LOW32) + 15) & ~7)
        if end > written or last > self._data_end:
            raise RingCorrupt(f"a record at {position} of {header & LOW32} bytes, where {written} are written")
        if header >> 32 != self._sequence:
            self._meet(header >> 32)
        payload = self._map[first:last]
        self._sequence = ((header >> 32) + 1) & LOW32
        self._next = end
        return payload

    def _meet(self, sequence: int) -> None:
        """The first record since attaching may have any sequence, in a ring whose header is right."""
        if self._sequence != ANY:
            raise RingCorrupt(f"record {sequence} stands where {self._sequence} should")
        self._check_header(self._r)

    def commit(self) -> None:
        """Everything received is processed: its room is free."""
        if self._next != self._words[self._r]:
            load_fence()  # the payloads were copied before their room is given back
            self._words[self._r] = self._next  # SYNC: ring.consume, pairs with Producer.try_send
