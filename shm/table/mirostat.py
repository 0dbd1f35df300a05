"""Mirostat's state of each sequence, the surprise that its next token may have: written and read by workers.

It follows from how likely each token was that was drawn, which no log says, so that whoever goes on with a sequence
finds it here. A slot has PLACES pairs of words, and that of a position is position % PLACES:
    0  cursor: generation << 32 | position, stored last
    1  the state with which the token of that position is drawn, float64
The worker stores what the next position is drawn with before it tells of a token. It is ahead of the log by a few steps
at most, and a successor begins where the log ends: its place is not written again by then. A worker dies between two
stores: the cursor speaks of no position, and the token before it is not told; its successor draws that, and stores the
same. The file is sparse, and a slot takes a KiB once it is used.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct

from ..fence import load_fence, store_fence
from ..layout import WORD_BYTES, generation_of, slot_of

PLACES = 64  # far more than steps are ever ahead
PAIR, CURSOR, STATE = 2, 0, 1  # words
FLOAT = Struct("<d")


class MirostatStates:
    """Those of all slots."""

    def __init__(self, fd: int, slots: int) -> None:
        self.slots = slots
        self.map = mmap.mmap(fd, _bytes(slots))
        self._words = memoryview(self.map).cast("Q")

    @staticmethod
    def create(slots: int) -> int:
        """The descriptor of a memory file for so many."""
        fd = os.memfd_create("actorserve-mirostat", os.MFD_CLOEXEC)
        os.ftruncate(fd, _bytes(slots))
        return fd

    def write(self, ref: int, position: int, state: float) -> None:
        """With which the token of this position will be drawn."""
        word = self._place(ref, position)
        self._words[word + CURSOR] = 0
        store_fence()
        FLOAT.pack_into(self.map, (word + STATE) * WORD_BYTES, state)
        store_fence()
        self._words[word + CURSOR] = generation_of(ref) << 32 | position  # SYNC: mirostat.cursor, pairs with read

    def read(self, ref: int, position: int) -> float | None:
        """None if no token before it has been drawn."""
        word = self._place(ref, position)
        cursor = self._words[word + CURSOR]  # SYNC: mirostat.cursor
        load_fence()
        if cursor != generation_of(ref) << 32 | position:
            return None
        (state,) = FLOAT.unpack_from(self.map, (word + STATE) * WORD_BYTES)
        return float(state)

    def _place(self, ref: int, position: int) -> int:
        """In words of the file."""
        if not 0 <= (slot := slot_of(ref)) < self.slots:
            raise IndexError(f"there is no slot {slot} among {self.slots}")
        return (slot * PLACES + position % PLACES) * PAIR


def _bytes(slots: int) -> int:
    return slots * PLACES * PAIR * WORD_BYTES
