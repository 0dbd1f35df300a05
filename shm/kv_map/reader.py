"""What an engine has cached, as an actor sees it that copies blocks or tells of them: it writes nothing.

The scheduler goes on meanwhile. Who reads a block's contents asks for its version before (`look`) and behind (`holds`):
a version is larger before the flag goes, and the flag is gone before the block is given away; and it is larger again
before the flag comes back. So contents that were read between two looks at the same version are those of the key, also
where the first look came between the larger version and the flag that went.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..fence import load_fence
from ..layout import HASH_BYTES, LOW32
from ..segment import Segment
from .layout import BLOCKS, HEADER_WORDS, WORKER, kv_map_places

Ints = NDArray[np.int64]


class CachedBlocks:
    """The map at `offset` of the segment; sizes are those of KVMap."""

    def __init__(self, segment: Segment, offset: int, sizes: tuple[int, int, int, int, int]) -> None:
        places, blocks = kv_map_places(offset, *sizes), sizes[2]
        self._memory, self._hashes = segment.map, places.hashes
        self._header: Ints = np.ndarray(HEADER_WORDS, np.int64, segment.map, places.header)
        self._flags: NDArray[np.uint8] = np.ndarray(blocks, np.uint8, segment.map, places.cached)
        self._versions: Ints = np.ndarray(blocks, np.int64, segment.map, places.versions)
        self._held: Ints = np.ndarray(sizes[0], np.int64, segment.map, places.held)
        self._seen: Ints = np.full(blocks, -1, np.int64)  # versions of blocks that were told of; -1: not cached then

    @property
    def worker(self) -> int:
        """The life of the worker whose memory it is about; 0: of none."""
        return int(self._header[WORKER])

    @property
    def blocks(self) -> int:
        """Of that memory."""
        return int(self._header[BLOCKS])

    def holders(self) -> list[int]:
        """The refs that hold blocks: of whom steps are planned."""
        return [int(self._held[slot]) & ~LOW32 | slot for slot in np.flatnonzero(self._held).tolist()]

    def changed(self) -> list[int]:
        """The blocks that have been cached, or are no more, since they were asked for the last time."""
        now = np.where(self._flags != 0, self._versions, -1)
        moved: list[int] = np.flatnonzero(now != self._seen).tolist()
        self._seen = now
        return moved

    def again(self, block: int) -> None:
        """Tell of this one once more."""
        self._seen[block] = -1

    def look(self, block: int) -> tuple[int, bytes] | None:
        """(version, key) of a block that is cached."""
        version = int(self._versions[block])
        load_fence()
        if not self._flags[block]:
            return None
        load_fence()
        start = self._hashes + HASH_BYTES * block
        key = self._memory[start : start + HASH_BYTES]
        return (version, key) if self.holds(block, version) else None

    def holds(self, block: int, version: int) -> bool:
        """Has it been cached all the time since it had this version?"""
        load_fence()
        return bool(self._flags[block]) and int(self._versions[block]) == version
