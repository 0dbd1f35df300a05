"""The logprobs of tokens, for requests that ask for them: written by the worker, read by detokenizers.

For each slot and position of its token log there are 1 + `most` entries of (int32, float32): the token's own rank and
logprob, then the most likely tokens with theirs, in descending order; how many of them, the request says. The worker
writes those of a token before it tells that it has drawn it; those of the prompt's tokens when it computes them.

Behind them each slot has room for the logprobs (float32) of the token ids that its request lists, in the request's
order: as many at each position as it lists, so a position's lie where that number puts them. They are written and read
as the records are, and of a worker that dies at it nobody reads: the token is not told yet, and its successor writes
the same again.
The file is sparse: memory is taken when it is written, and given back when the slot is written for another request.
So the second part takes none of those who list nothing, and 4 bytes for each id and token of those who do.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from struct import Struct

from ..layout import PAGE, whole
from ..pages import give_back

USUAL_MOST = 20  # of the most likely tokens
MOST_LISTED = 128  # token ids that a request may list
ENTRY = Struct("<if")
LISTED = Struct("<f")


class Logprobs:
    """All slots' records."""

    def __init__(self, fd: int, slots: int, max_tokens: int, most: int = USUAL_MOST) -> None:
        self.slots, self.max_tokens, self.most = slots, max_tokens, most
        self.record = _record(most)
        self.stride, self.listed_stride = _strides(max_tokens, most)
        self.is_current: Callable[[int], bool] = lambda ref: True  # the slot is not another request's by now
        self.map = mmap.mmap(fd, slots * (self.stride + self.listed_stride))

    @staticmethod
    def create(slots: int, max_tokens: int, most: int = USUAL_MOST) -> int:
        """The descriptor of a memory file for so many."""
        fd = os.memfd_create("actorserve-logprobs", os.MFD_CLOEXEC)
        os.ftruncate(fd, slots * sum(_strides(max_tokens, most)))
        return fd

    def start(self, slot: int, position: int) -> int:
        """Where a token's record begins, in bytes of the file."""
        if not (0 <= slot < self.slots and 0 <= position < self.max_tokens):
            raise IndexError(f"there is no position {position} of slot {slot}")
        return slot * self.stride + position * self.record

    def read(self, slot: int, position: int, most: int) -> list[tuple[int, float]]:
        """(rank, logprob) of the token, then (id, logprob) of the `most` most likely tokens."""
        start = self.start(slot, position)
        return list(ENTRY.iter_unpack(self.map[start : start + (1 + most) * ENTRY.size]))

    def copy_out(self, slot: int, position: int, count: int, most: int) -> bytes:
        """The entries of so many positions, without the room behind each."""
        size, start = (1 + most) * ENTRY.size, self.start(slot, position)
        self.start(slot, position + count - 1)
        return b"".join(self.map[at : at + size] for at in range(start, start + count * self.record, self.record))

    def copy_in(self, slot: int, position: int, count: int, entries: bytes) -> None:
        """As `copy_out` has made them elsewhere. ValueError if that cannot be."""
        size, start = len(entries) // count, self.start(slot, position)
        self.start(slot, position + count - 1)
        if size * count != len(entries) or size > self.record:
            raise ValueError(f"{len(entries)} bytes of logprobs for {count} positions")
        for index in range(count):
            at = start + index * self.record
            self.map[at : at + size] = entries[index * size : (index + 1) * size]

    def copy_listed(self, slot: int, position: int, count: int, listed: int, values: bytes | None = None) -> bytes:
        """Those of so many ids that the request lists, at so many positions; `values` are stored there first."""
        self.start(slot, position + count - 1)
        start = self.listed_start + slot * self.listed_stride + position * listed * LISTED.size
        end = start + count * listed * LISTED.size
        if values is not None:
            self.map[start:end] = values
        return self.map[start:end]

    @property
    def listed_start(self) -> int:
        """Where the part of the token ids that requests list begins, in bytes of the file."""
        return self.slots * self.stride

    def read_listed(self, slot: int, position: int, count: int) -> list[float]:
        """The logprobs of the token ids that the slot's request lists, of which there are `count`."""
        self.start(slot, position)  # is there such a place?
        start = self.listed_start + slot * self.listed_stride + position * count * LISTED.size
        return [value for (value,) in LISTED.iter_unpack(self.map[start : start + count * LISTED.size])]

    def forget(self, slot: int) -> None:
        """Give the slot's memory back."""
        give_back(self.map, self.start(slot, 0), self.stride)
        self.forget_listed(slot)

    def forget_listed(self, slot: int) -> None:
        """Give back what the slot's list has taken."""
        give_back(self.map, self.listed_start + slot * self.listed_stride, self.listed_stride)


def _record(most: int) -> int:
    """Bytes of a position."""
    return (1 + most) * ENTRY.size


def _strides(max_tokens: int, most: int) -> tuple[int, int]:
    """Bytes of a slot in either part, in whole pages."""
    return whole(max_tokens * _record(most), PAGE), whole(max_tokens * MOST_LISTED * LISTED.size, PAGE)
