"""Where a block of a known prefix may lie: behind the KV map, so that others can see what an engine has cached.

The entries of a key are those of one group, which the key's first bytes name: `block + 1` each, 0 for none. The map's
writer stores one entry when a block is cached, by one move, and takes none away: which of them still hold, the map says
(the block's flag, and its hash as a whole). Where a group is full of entries that hold, one is lost; so a reader finds
nothing that is not there, but for a moment in which the writer changes it, and may miss what is. For hints alone.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from ..layout import HASH_BYTES, WORD_BYTES
from ..segment import Segment
from .layout import BLOCKS, ENTRIES, kv_map_places

Sizes = tuple[int, int, int, int, int]  # as KVMap takes them


def group_of(key: bytes | memoryview, groups: int) -> int:
    """Which of so many (a power of two) has the entries of this key."""
    return int.from_bytes(key[:WORD_BYTES], "little") & groups - 1


class IndexWriter:
    """The scheduler's side: to be told of each block that is cached."""

    def __init__(self, memory: mmap.mmap, places: tuple[int, int], flags: NDArray[np.uint8], groups: int) -> None:
        """`places`: of the entries, and of all blocks' hashes, in bytes."""
        self._memory, self._flags, self._groups = memory, flags, groups
        self._hashes = places[1]
        self._entries: NDArray[np.uint32] = np.ndarray(ENTRIES * groups, np.uint32, memory, places[0])

    def add(self, block: int, key: bytes) -> None:
        """The block is cached by this key, and the map says so already."""
        group = group_of(key, self._groups)
        start = ENTRIES * group
        entries = self._entries[start : start + ENTRIES].tolist()
        stale = (at for at, entry in enumerate(entries) if entry in (0, block + 1) or not self._holds(entry - 1, group))
        self._entries[start + next(stale, block % ENTRIES)] = block + 1

    def _holds(self, block: int, group: int) -> bool:
        """Is this block cached by a key of the group?"""
        start = self._hashes + HASH_BYTES * block
        return bool(self._flags[block]) and group_of(self._memory[start : start + WORD_BYTES], self._groups) == group


class CachedPrefixes:
    """What one engine has cached, as anyone sees it."""

    def __init__(self, segment: Segment, offset: int, sizes: Sizes) -> None:
        places = kv_map_places(offset, *sizes)
        self._memory, self._words, self._groups = segment.map, segment.words, sizes[4]
        self._count = places.header // WORD_BYTES + BLOCKS
        self._flags, self._hashes = places.cached, places.hashes
        self._entries, self._first = memoryview(segment.map).cast("I"), places.entries // 4

    def __contains__(self, key: bytes) -> bool:
        start = self._first + ENTRIES * group_of(key, self._groups)
        return any(self._is(entry - 1, key) for entry in self._entries[start : start + ENTRIES].tolist() if entry)

    def _is(self, block: int, key: bytes) -> bool:
        if block >= self._words[self._count] or not self._memory[self._flags + block]:
            return False
        start = self._hashes + HASH_BYTES * block
        return self._memory[start : start + HASH_BYTES] == key
