"""Which client keys there are, for all frontends: one packed text, published anew when the file of keys changes.

One writer: the supervisor. Layout: a header line (version, and the length of the text of each half), then two halves.
The writer fills the half that nobody is sent to, then stores its length, then the version, whose lowest bit names the
half. A reader loads the version, copies, and loads the version again: where that has gone on, it reads once more.
"""

from __future__ import annotations

from ..fence import load_fence, store_fence
from ..layout import CACHE_LINE, WORD_BYTES, check_place, whole
from ..segment import Segment

VERSION, LENGTHS = 0, 1
TRIES = 8  # a file of keys does not change so often while it is copied


def book_bytes(room: int) -> int:
    """Of a segment, for texts of at most `room` bytes."""
    return CACHE_LINE + 2 * whole(room, CACHE_LINE)


class KeyBook:
    """As anybody reads it, and its one writer writes it."""

    def __init__(self, segment: Segment, offset: int, room: int) -> None:
        check_place(segment.size, offset, book_bytes(room), "book of keys")
        self._map, self._words = segment.map, segment.words
        self._first = offset // WORD_BYTES
        self._halves = [offset + CACHE_LINE, offset + CACHE_LINE + whole(room, CACHE_LINE)]
        self.room = room

    @property
    def version(self) -> int:
        """It rises with each text; 0: there is none yet."""
        return self._words[self._first + VERSION]

    def publish(self, text: bytes) -> None:
        """From now on this one counts. The writer's alone."""
        if len(text) > self.room:
            raise ValueError(f"{len(text)} bytes of keys, at most {self.room} fit")
        version = self.version + 1
        start = self._halves[version & 1]
        self._map[start : start + len(text)] = text
        self._words[self._first + LENGTHS + (version & 1)] = len(text)
        store_fence()
        self._words[self._first + VERSION] = version  # SYNC: book.version, pairs with read

    def read(self) -> tuple[int, bytes]:
        """(version, text)."""
        for _ in range(TRIES):
            version = self.version  # SYNC: book.version
            load_fence()
            half = version & 1
            start, length = self._halves[half], self._words[self._first + LENGTHS + half]
            text = bytes(self._map[start : start + min(length, self.room)])
            load_fence()
            if self.version == version:
                return version, text
        raise RuntimeError("the keys change faster than they can be read")
