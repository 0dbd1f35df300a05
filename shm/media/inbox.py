"""What clients sent of pictures and sounds, on its way from frontends to media actors: bytes that are too many for a
ring.

Each frontend has a region of its own, and alone writes it. A record is a line of words, of which the first is the ref
(or the number of a call) that it belongs to, and behind it the bytes; the words of a slot's use say where it lies
(arena.py). Who is free the frontend keeps in mind alone: its successor begins with an empty region. What of a dead
frontend's is read meanwhile belongs to uses of slots that nobody goes on with; a record is read whole, and is none if
its first word says then that it belongs to another. The memory of a record is given back with it, as far as whole
pages of it go.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from ..fence import load_fence, store_fence
from ..layout import CACHE_LINE, PAGE, WORD_BYTES, whole
from ..pages import give_back


class MediaInbox:
    """All regions, to read."""

    def __init__(self, fd: int, regions: int, room: int) -> None:
        self.room = room
        self.map = mmap.mmap(fd, regions * room)
        self.words = memoryview(self.map).cast("Q")

    @staticmethod
    def create(regions: int, room: int) -> int:
        """The descriptor of a memory file for so many regions of `room` bytes, in whole pages. It is sparse."""
        fd = os.memfd_create("actorserve-media-inbox", os.MFD_CLOEXEC)
        os.ftruncate(fd, regions * room)
        return fd

    def read(self, owner: int, place: int, start: int, size: int) -> bytes | None:
        """So many bytes of this owner's record; None if it is another's."""
        at = place + CACHE_LINE + start
        if place % CACHE_LINE or not 0 <= place <= at + size <= len(self.map):
            return None
        data = self.map[at : at + size]
        load_fence()
        return data if self.words[place // WORD_BYTES] == owner else None  # SYNC: inbox.owner, pairs with put


class InboxRegion(MediaInbox):
    """One frontend's, to write."""

    def __init__(self, fd: int, regions: int, room: int, own: int) -> None:
        super().__init__(fd, regions, room)
        self._start = own * room
        self._taken: list[tuple[int, int]] = []  # (offset, end), in order

    def reserve(self, size: int) -> int | None:
        """Room for a record of so many bytes; None if there is none now."""
        size = self.taken_by(size)
        end = self._start
        for index, (start, behind) in enumerate(self._taken):
            if start - end >= size:
                self._taken.insert(index, (end, end + size))
                return end
            end = behind
        if self._start + self.room - end < size:
            return None
        self._taken.append((end, end + size))
        return end

    @staticmethod
    def taken_by(size: int) -> int:
        """Bytes of the region for a record of so many."""
        return whole(CACHE_LINE + size, PAGE)

    def put(self, owner: int, offset: int, parts: Sequence[bytes]) -> None:
        """The bytes of a record for which room was reserved."""
        self.words[offset // WORD_BYTES] = 0
        store_fence()
        at = offset + CACHE_LINE
        for part in parts:
            self.map[at : at + len(part)] = part
            at += len(part)
        store_fence()
        self.words[offset // WORD_BYTES] = owner  # SYNC: inbox.owner

    def free(self, offset: int) -> None:
        """The record is read, or nobody wants it."""
        taken = next(one for one in self._taken if one[0] == offset)
        self._taken.remove(taken)
        self.words[offset // WORD_BYTES] = 0  # the next record may begin before it, and leave this word
        give_back(self.map, offset, taken[1] - offset)

    @property
    def used(self) -> int:
        """Bytes that are not free."""
        return sum(end - start for start, end in self._taken)
