"""What clients have sent and nobody has answered yet: the raw bytes of each connection's request, in its own record.

A record belongs to the frontend that serves its connection, which alone writes it; a successor reads it. Layout: one
page of words, then the bytes. Counts are of the connection's whole life, as the kernel counts them.
    rest      bytes read when the connection last stood between two requests
    begin     the value of rest that the rest of the record speaks of; stored last when a record is begun
    length    bytes that stand in the record
A request is whole in the record if begin equals rest and begin + length is what was read; who dies between reading and
storing leaves less. Memory is taken when it is written, and given back when a long request is over.
"""

from __future__ import annotations

import mmap
import os

from .fence import load_fence, store_fence

PAGE = mmap.PAGESIZE
REST, BEGIN, LENGTH = range(3)
LONG = 1 << 16  # bytes of a request whose memory is given back
TOO_LONG = (1 << 64) - 1  # in `length`: the request does not fit


class Journal:
    """Records 0 to count - 1, of `room` bytes each. Numbers beyond are nobody's: nothing is kept of them."""

    def __init__(self, fd: int, count: int, room: int) -> None:
        self.count = count
        self._room = -(-room // PAGE) * PAGE
        self._map = mmap.mmap(fd, journal_bytes(count, room))
        self._words = memoryview(self._map).cast("Q")

    @staticmethod
    def create(count: int, room: int) -> int:
        """The descriptor of a memory file for such a journal. It has no name, and no size but what is written."""
        fd = os.memfd_create("actorserve-journal", os.MFD_CLOEXEC)
        os.ftruncate(fd, journal_bytes(count, room))
        return fd

    # --- the connection's frontend -------------------------------------------------------------------------------

    def rest(self, number: int, read: int) -> None:
        """Nothing is under way on this connection, of which so many bytes were read."""
        if number < self.count:
            first = self._first(number)
            self._words[first + REST] = read  # SYNC: journal.rest: from here on the record speaks of nothing
            if LONG < self._words[first + LENGTH] <= self._room:
                self._words[first + LENGTH] = 0
                self._map.madvise(mmap.MADV_REMOVE, first * 8 + PAGE, self._room)

    def begin(self, number: int) -> None:
        """Something has come after a rest."""
        if number < self.count:
            first = self._first(number)
            self._words[first + LENGTH] = 0
            store_fence()
            self._words[first + BEGIN] = self._words[first + REST]  # SYNC: journal.begin

    def append(self, number: int, data: bytes) -> None:
        """More of the request."""
        if number < self.count:
            first = self._first(number)
            length = self._words[first + LENGTH]
            if length + len(data) > self._room:
                self._words[first + LENGTH] = TOO_LONG
                return
            start = first * 8 + PAGE + length
            self._map[start : start + len(data)] = data
            store_fence()
            self._words[first + LENGTH] = length + len(data)  # SYNC: journal.length

    # --- its successor -------------------------------------------------------------------------------------------

    def is_at_rest(self, number: int, read: int) -> bool:
        """Nothing was under way when so many bytes had been read."""
        return number < self.count and self._words[self._first(number) + REST] == read

    def request(self, number: int, read: int) -> bytes | None:
        """What has come of the request that was begun; None if not all that was read is here."""
        if number >= self.count:
            return None
        first = self._first(number)
        begin, length = self._words[first + BEGIN], self._words[first + LENGTH]
        load_fence()
        if begin != self._words[first + REST] or begin + length != read:
            return None
        start = first * 8 + PAGE
        return self._map[start : start + length]

    def _first(self, number: int) -> int:
        """The record's first word."""
        return number * (PAGE + self._room) // 8


def journal_bytes(count: int, room: int) -> int:
    """The size of the file."""
    return count * (PAGE + -(-room // PAGE) * PAGE)
