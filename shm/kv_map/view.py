"""The KV map as anyone may look at it from outside, for a picture: it writes nothing and needs no numpy.

The scheduler goes on meanwhile, so a block may be shown as it was a moment before its neighbour.
"""

from __future__ import annotations

from ..layout import LOW32, WORD_BYTES
from ..segment import Segment
from .layout import BLOCK_BYTES, BLOCKS, WORKER, kv_map_places


class KVView:
    """The map that lies at `offset` of the segment; sizes are those of KVMap."""

    def __init__(self, segment: Segment, offset: int, slots: int, sequence_blocks: int, blocks: int) -> None:
        if offset < 0 or offset % WORD_BYTES:
            raise ValueError(f"no KV map can lie at {offset}")
        self._segment = segment
        places = kv_map_places(offset, slots, sequence_blocks, blocks)
        self._header, self._held = places.header // WORD_BYTES, places.held // WORD_BYTES
        self._slots, self._sequence_blocks, self._most = slots, sequence_blocks, blocks
        self._tables, self._flags = places.tables, places.cached
        self._computed = places.computed // WORD_BYTES

    def computed(self, ref: int) -> int:
        """Tokens of this sequence that are computed in its blocks."""
        word = self._segment.words[self._computed + (ref & LOW32)]
        return word & LOW32 if word >> 32 == ref >> 32 else 0

    def look(self) -> tuple[bytes, bytes]:
        """(1 for each block that sequences hold, 1 for each that is kept for a prefix); empty without a worker."""
        words, memory = self._segment.words, self._segment.map
        count = words[self._header + BLOCKS]
        if not words[self._header + WORKER] or count > self._most:
            return b"", b""
        held = bytearray(count)
        for slot, word in enumerate(words[self._held : self._held + self._slots].tolist()):
            length = word & LOW32
            if 0 < length <= self._sequence_blocks:
                start = self._tables + slot * self._sequence_blocks * BLOCK_BYTES
                for block in memoryview(memory[start : start + length * BLOCK_BYTES]).cast("i"):
                    if 0 <= block < count:
                        held[block] = 1
        return bytes(held), memory[self._flags : self._flags + count]
