"""The KV map as anyone may look at it from outside, for a picture: it writes nothing and needs no numpy.

The scheduler goes on meanwhile, so a block may be shown as it was a moment before its neighbour.
"""

from __future__ import annotations

from ..segment import Segment
from .layout import BLOCKS, HASH_BYTES, HEADER_BYTES, WORKER, whole_words

LOW = 0xFFFFFFFF


class KVView:
    """The map that lies at `offset` of the segment; sizes are those of KVMap."""

    def __init__(self, segment: Segment, offset: int, slots: int, sequence_blocks: int, blocks: int) -> None:
        if offset < 0 or offset % 8:
            raise ValueError(f"no KV map can lie at {offset}")
        self._segment = segment
        self._header = offset // 8
        self._held = self._header + HEADER_BYTES // 8
        self._slots, self._sequence_blocks, self._most = slots, sequence_blocks, blocks
        self._tables = offset + HEADER_BYTES + slots * 24
        self._flags = self._tables + whole_words(slots * sequence_blocks * 4) + blocks * HASH_BYTES

    def look(self) -> tuple[bytes, bytes]:
        """(1 for each block that sequences hold, 1 for each that is kept for a prefix); empty without a worker."""
        words, memory = self._segment.words, self._segment.map
        count = words[self._header + BLOCKS]
        if not words[self._header + WORKER] or count > self._most:
            return b"", b""
        held = bytearray(count)
        for slot, word in enumerate(words[self._held : self._held + self._slots].tolist()):
            length = word & LOW
            if 0 < length <= self._sequence_blocks:
                start = self._tables + slot * self._sequence_blocks * 4
                for block in memoryview(memory[start : start + length * 4]).cast("i"):
                    if 0 <= block < count:
                        held[block] = 1
        return bytes(held), memory[self._flags : self._flags + count]
