"""What stands in cached blocks, for whoever tells of them: which tokens, behind which block.

A file of its own, beside the KV maps, where there is somebody to read it. Layout, for each engine:
    header   the number of the next batch of events                      the herald
    a block  key of the block before it in the prefix (zeros: it is the first); id of the adapter, or that nobody is
             told of the block (a word); token ids                       the scheduler
The scheduler writes a block's note before the KV map calls it cached, and never while it does; so a note that is read
between two looks at the same version of the block (reader.py) is that of its key. A scheduler's successor finds the
notes of all blocks that the map calls cached, a herald's the number with which to go on.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from ..layout import CACHE_LINE, HASH_BYTES, PAGE, WORD_BYTES, whole

TOKEN_BYTES = 4
FIRST = bytes(HASH_BYTES)
UNTOLD = b"\xff" * WORD_BYTES  # in the place of the adapter's id: nobody is told of the block


class NoteSizes(NamedTuple):
    """Of the file."""

    engines: int
    blocks: int
    block_size: int

    @property
    def note_bytes(self) -> int:
        return whole(HASH_BYTES + WORD_BYTES + self.block_size * TOKEN_BYTES, WORD_BYTES)

    @property
    def engine_bytes(self) -> int:
        return whole(CACHE_LINE + self.blocks * self.note_bytes, PAGE)


class Note(NamedTuple):
    """Of one block."""

    parent: bytes | None
    adapter: int
    tokens: list[int]


class BlockNotes:
    """Those of one engine."""

    def __init__(self, fd: int, sizes: NoteSizes, engine: int) -> None:
        self._sizes = sizes
        self._map = mmap.mmap(fd, sizes.engine_bytes, offset=engine * sizes.engine_bytes)
        self._words = memoryview(self._map).cast("Q")

    @staticmethod
    def create(sizes: NoteSizes) -> int:
        """The descriptor of a memory file; it takes memory as it is written."""
        fd = os.memfd_create("actorserve-kv-notes", os.MFD_CLOEXEC)
        os.ftruncate(fd, sizes.engines * sizes.engine_bytes)
        return fd

    def write(self, block: int, parent: bytes | None, adapter: int, tokens: bytes | memoryview) -> None:
        """`tokens`: int32 ids."""
        note = (parent or FIRST) + adapter.to_bytes(WORD_BYTES, "little") + bytes(tokens)
        start = self._start(block)
        self._map[start : start + len(note)] = note

    def write_untold(self, block: int) -> None:
        """What stands in it no token ids say, so that nobody could ask for it by them."""
        start = self._start(block) + HASH_BYTES
        self._map[start : start + WORD_BYTES] = UNTOLD

    def read(self, block: int) -> Note | None:
        """As it is written; None of a block of which nobody is told."""
        start = self._start(block)
        note = memoryview(self._map[start : start + self._sizes.note_bytes])
        if note[HASH_BYTES : HASH_BYTES + WORD_BYTES] == UNTOLD:
            return None
        parent = bytes(note[:HASH_BYTES])
        tokens = note[HASH_BYTES + WORD_BYTES :][: self._sizes.block_size * TOKEN_BYTES].cast("i").tolist()
        adapter = int.from_bytes(note[HASH_BYTES : HASH_BYTES + WORD_BYTES], "little")
        return Note(None if parent == FIRST else parent, adapter, tokens)

    def _start(self, block: int) -> int:
        return CACHE_LINE + block * self._sizes.note_bytes

    @property
    def next_batch(self) -> int:
        """Its number."""
        return int(self._words[0])

    @next_batch.setter
    def next_batch(self, number: int) -> None:
        self._words[0] = number
