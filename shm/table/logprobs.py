"""The logprobs of tokens, for requests that ask for them: written by the worker, read by detokenizers.

For each slot and position of its token log there are 1 + MOST entries of (int32, float32): the token's own rank and
logprob, then the most likely tokens with theirs, in descending order; how many of them, the request says. The worker
writes those of a token before it tells that it has drawn it; those of the prompt's tokens when it computes them.
The file is sparse: memory is taken when it is written, and given back when the slot is written for another request.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct

from ..layout import PAGE, whole

MOST = 20
ENTRY = Struct("<if")
RECORD = (1 + MOST) * ENTRY.size


class Logprobs:
    """All slots' records."""

    def __init__(self, fd: int, slots: int, max_tokens: int) -> None:
        self.slots, self.max_tokens = slots, max_tokens
        self._stride = _stride(max_tokens)
        self.map = mmap.mmap(fd, slots * self._stride)

    @staticmethod
    def create(slots: int, max_tokens: int) -> int:
        """The descriptor of a memory file for so many."""
        fd = os.memfd_create("actorserve-logprobs", os.MFD_CLOEXEC)
        os.ftruncate(fd, slots * _stride(max_tokens))
        return fd

    def start(self, slot: int, position: int) -> int:
        """Where a token's record begins, in bytes of the file."""
        if not (0 <= slot < self.slots and 0 <= position < self.max_tokens):
            raise IndexError(f"there is no position {position} of slot {slot}")
        return slot * self._stride + position * RECORD

    def read(self, slot: int, position: int, most: int) -> list[tuple[int, float]]:
        """(rank, logprob) of the token, then (id, logprob) of the `most` most likely tokens."""
        start = self.start(slot, position)
        return list(ENTRY.iter_unpack(self.map[start : start + (1 + most) * ENTRY.size]))

    def forget(self, slot: int) -> None:
        """Give the slot's memory back."""
        self.map.madvise(mmap.MADV_REMOVE, self.start(slot, 0), self._stride)


def _stride(max_tokens: int) -> int:
    """Bytes of a slot, in whole pages."""
    return whole(max_tokens * RECORD, PAGE)
