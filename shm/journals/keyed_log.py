"""What a frontend must find again by a key after its own death: a bounded log of records, the newest of a key counts.

One region a frontend, written by it alone, read by it, its successor and the others. Layout: one page of words, then a
ring of bytes by their count in the server's life.
    start     the oldest record that is whole; moved before what lies there is overwritten
    end       behind the newest record; stored last
A record: length of its payload and two words of key, then the payload, in whole words. What is old is forgotten when
there is no room: nothing here is the only copy of a running request. Others may read what is being overwritten: what
stands before `start` once it is read counts for nothing.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from struct import Struct

from ..fence import load_fence, store_fence
from ..layout import PAGE, WORD_BYTES, whole
from .byte_ring import data_start, read_ring, region_bytes, region_words, write_ring

KEY_BYTES = 16
HEADER = Struct(f"<Q{KEY_BYTES}s")
START, END = range(2)
LARGEST_SHARE = 8  # of the room: a record that fills more of it would cost too many others


class _Region:
    """One of the file, and what stands in it by its place."""

    def __init__(self, memory: mmap.mmap, room: int, index: int) -> None:
        self._map, self._room = memory, room
        self._words = memoryview(memory).cast("Q")
        self._first = index * region_words(room)
        self._start = data_start(self._first)

    def _read(self, at: int, length: int) -> bytes:
        return read_ring(self._map, self._start, self._room, at, length)


class KeyedLog(_Region):
    """Region `index` of the file, for who writes it."""

    def __init__(self, fd: int, count: int, room: int, index: int) -> None:
        super().__init__(mmap.mmap(fd, recent_bytes(count, room)), whole(room, PAGE), index)
        self._found: dict[bytes, tuple[int, int]] = {}  # key: position and length of its newest payload
        at, end = self._words[self._first + START], self._words[self._first + END]  # SYNC: recent.end
        load_fence()
        while at < end:
            length, key = HEADER.unpack(self._read(at, HEADER.size))
            self._found[key] = at + HEADER.size, length
            at += _size(length)

    def other(self, index: int, least: int = 0) -> OtherLog:
        """Another's region."""
        return OtherLog(self._map, self._room, index, least)

    @staticmethod
    def create(count: int, room: int) -> int:
        """The descriptor of a memory file of so many regions; memory is taken when it is written."""
        fd = os.memfd_create("actorserve-recent", os.MFD_CLOEXEC)
        os.ftruncate(fd, recent_bytes(count, room))
        return fd

    @property
    def longest(self) -> int:
        """Bytes of the longest payload that is kept."""
        return self._room // LARGEST_SHARE - HEADER.size - WORD_BYTES

    def put(self, key: bytes, payload: bytes) -> bool:
        """From now on this is the key's. False, and nothing is changed, if it is too long."""
        if len(payload) > self.longest:
            return False
        words, first = self._words, self._first
        start, end = words[first + START], words[first + END]
        while end + _size(len(payload)) - start > self._room:
            length, oldest = HEADER.unpack(self._read(start, HEADER.size))
            if self._found.get(oldest) == (start + HEADER.size, length):
                del self._found[oldest]
            start += _size(length)
        words[first + START] = start
        store_fence()  # who comes after a death in the copy does not look at what it overwrites
        write_ring(self._map, self._start, self._room, end, HEADER.pack(len(payload), key) + payload)
        store_fence()
        words[first + END] = end + _size(len(payload))  # SYNC: recent.end
        self._found[key] = end + HEADER.size, len(payload)
        return True

    def get(self, key: bytes) -> bytes | None:
        """The key's newest payload, if it is not forgotten."""
        found = self._found.get(key)
        return None if found is None else self._read(*found)

    def __contains__(self, key: bytes) -> bool:
        """Is there a payload of it that is not forgotten?"""
        return key in self._found

    def keys(self) -> list[bytes]:
        """All that are not forgotten, the one first written first."""
        return list(self._found)


class OtherLog(_Region):
    """A region for who only looks, while its writer may write. While a record is written in the place of its key's own
    old one there is neither.
    """

    def __init__(self, memory: mmap.mmap, room: int, index: int, least: int) -> None:
        """`least`: bytes of payloads that are looked for; shorter ones are taken for none, and cost no memory."""
        super().__init__(memory, room, index)
        self._least = least
        self._at = 0  # behind the last record that is known
        self._known: deque[tuple[int, bytes]] = deque()  # position and key of each, the oldest first
        self._newest: dict[bytes, tuple[int, int]] = {}  # key: position and length of its newest record

    def get(self, key: bytes) -> bytes | None:
        """The key's newest payload, if it is not forgotten."""
        self._follow()
        while (found := self._newest.get(key)) is not None:
            at, length = found
            payload = self._read(at + HEADER.size, length)
            if at >= self._oldest():
                return payload
            self._follow()
        return None

    def _oldest(self) -> int:
        """The oldest record that is whole: what was read before it may be anything."""
        load_fence()
        return self._words[self._first + START]

    def _follow(self) -> None:
        """Forget what is overwritten, and learn what was written up to some moment behind that."""
        self._forget(self._oldest())
        while self._at < self._words[self._first + END]:  # SYNC: recent.end
            load_fence()
            length, key = HEADER.unpack(self._read(self._at, HEADER.size))
            if self._at < (oldest := self._oldest()):
                self._forget(oldest)
                continue
            if length >= self._least:
                self._known.append((self._at, key))
                self._newest[key] = self._at, length
            else:
                self._newest.pop(key, None)
            self._at += _size(length)

    def _forget(self, oldest: int) -> None:
        """All before this position."""
        while self._known and self._known[0][0] < oldest:
            at, key = self._known.popleft()
            if key in self._newest and self._newest[key][0] == at:
                del self._newest[key]
        self._at = max(self._at, oldest)


def _size(length: int) -> int:
    """Bytes of a whole record."""
    return whole(HEADER.size + length, WORD_BYTES)


def recent_bytes(count: int, room: int) -> int:
    """The size of the file."""
    return count * region_bytes(room)
