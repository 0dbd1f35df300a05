"""What pooling models make of prompts, float32: written by the worker, read by the frontend of the slot.

A slot has a line of words and behind it room for numbers:
    0  cursor: generation << 32 | rows (1 for a vector, one for each token where each has its own), stored last
    1  columns
The worker writes a sequence's numbers before it tells that its step is done, so that they are there when its finish
word is. Whoever computes the sequence again writes the same numbers to the same place, and before a finish word
alone: steps run in the order in which they were sent, those of a dead scheduler before its successor's. The frontend
reads them when the end is told, and before it lets go of the slot. What of an earlier use is still on its way is
overwritten by the present one, which comes behind it; the cursor's generation says whose numbers they are.
The worker dies between two stores: the cursor speaks of no use, or of the same numbers, and its successor writes all of
them again. The frontend dies: its successor reads them again.
The file is sparse: memory is taken when it is written; that of more than 64 KiB is given back with the slot.
"""

from __future__ import annotations

import mmap
import os

from ..fence import load_fence, store_fence
from ..layout import CACHE_LINE, LOW32, PAGE, WORD_BYTES, generation_of, slot_of, whole
from ..pages import give_back

CURSOR, COLUMNS = 0, 1
NUMBER_BYTES = 4
KEPT_BYTES = 64 << 10  # of a slot that need not be given back


class Vectors:
    """All slots' numbers."""

    def __init__(self, fd: int, slots: int, numbers: int) -> None:
        self.slots, self.numbers = slots, numbers
        self._stride = _stride(numbers)
        self.map = mmap.mmap(fd, slots * self._stride)
        self._words = memoryview(self.map).cast("Q")

    @staticmethod
    def create(slots: int, numbers: int) -> int:
        """The descriptor of a memory file for so many numbers of each slot."""
        fd = os.memfd_create("actorserve-vectors", os.MFD_CLOEXEC)
        os.ftruncate(fd, slots * _stride(numbers))
        return fd

    def write(self, ref: int, rows: int, columns: int, data: bytes | memoryview) -> None:
        """`data`: the numbers of all rows."""
        start, size = self._start(ref), NUMBER_BYTES * rows * columns
        if len(data) != size or size > NUMBER_BYTES * self.numbers:
            raise ValueError(f"{len(data)} bytes of {rows} times {columns} numbers; {self.numbers} numbers fit")
        word = start // WORD_BYTES
        self._words[word + CURSOR] = 0
        store_fence()
        self.map[start + CACHE_LINE : start + CACHE_LINE + size] = data
        self._words[word + COLUMNS] = columns
        store_fence()
        self._words[word + CURSOR] = generation_of(ref) << 32 | rows  # SYNC: vectors.cursor, pairs with read

    def read(self, ref: int, first: int = 0, most: int = LOW32) -> tuple[int, int, bytes] | None:
        """(rows, columns, float32 of `most` rows from `first` on); None if they are not of this use of the slot."""
        start = self._start(ref)
        word = start // WORD_BYTES
        cursor = self._words[word + CURSOR]  # SYNC: vectors.cursor
        load_fence()
        if cursor >> 32 != generation_of(ref):
            return None
        rows, columns = max(0, min(most, (cursor & LOW32) - first)), self._words[word + COLUMNS]
        begin = start + CACHE_LINE + NUMBER_BYTES * first * columns
        return rows, columns, self.map[begin : begin + NUMBER_BYTES * rows * columns]

    def give_back(self, ref: int) -> None:
        """The slot's numbers were read, or nobody wants them: a large matrix, or what may be the begin of one, takes no
        more memory.
        """
        start = self._start(ref)
        word = start // WORD_BYTES
        rows, columns = self._words[word + CURSOR] & LOW32, self._words[word + COLUMNS]
        if self._stride > KEPT_BYTES and (not rows or NUMBER_BYTES * rows * columns > KEPT_BYTES):
            give_back(self.map, start, self._stride)

    def _start(self, ref: int) -> int:
        slot = slot_of(ref)
        if not 0 <= slot < self.slots:
            raise IndexError(f"there is no slot {slot} among {self.slots}")
        return slot * self._stride


class RequestedRows(Vectors):
    """Of those requests alone that ask for them."""

    def give_back(self, ref: int) -> None:
        """Nobody will read the slot's rows again, if it had any."""
        if self._words[self._start(ref) // WORD_BYTES + CURSOR]:
            super().give_back(ref)


def _stride(numbers: int) -> int:
    """Bytes of a slot, in whole pages."""
    return whole(CACHE_LINE + NUMBER_BYTES * numbers, PAGE)
