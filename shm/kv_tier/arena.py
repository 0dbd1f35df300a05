"""The tier of KV blocks in the host's memory: a file of the supervisor's with slots for copies of blocks.

Layout:
    header   magic, slot bytes, slots; how often all was to be forgotten, and how often         the porter
             it has been; the fingerprint of what the blocks mean
    settled  a line for each engine: its fetches below this number are over                     its scheduler
    leases   a word for each slot and engine: the last fetch of that engine that has the slot   the porter
    slots    a line each: full (0 or 1), key                                                    the porter
    data     slots, each as long as a block of all members of a worker's group                  the porter

A slot is found when it is full: the porter takes the flag away before it writes to it, and stores it behind the
contents and the key. A death in between leaves a slot that is not found, and is free.

A worker copies from slots by their numbers alone, at its scheduler's word; so these must stay until it has. Each fetch
of an engine has a number, larger than all before it (a scheduler's life comes first in it). The porter stores the
number into the lease of each slot that it names in an answer, before it answers, and gives no slot away whose lease is
not settled by its engine. The scheduler stores its settled word when it has heard of the copies, or wants them no more:
    the porter dies       its successor finds the leases
    the scheduler dies    its successor settles all numbers of lives before; copies that are under way then may read
                          what is being overwritten, into blocks that no map calls cached or held
    the worker dies       its scheduler begins anew, and settles what it had asked for
The file is formatted anew, for other contents, only when all leases are settled.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from ..fence import load_fence, store_fence
from ..layout import CACHE_LINE, HASH_BYTES, LINE_WORDS, WORD_BYTES, whole
from .layout import HEADER_BYTES, LEAST_SLOT, TierSizes

MAGIC = 0x3145524E41565441
FINGERPRINT_BYTES = 32
IS, SLOT_BYTES, COUNT, ASKED, FORGOTTEN = 0, 1, 2, 3, 4
FULL = 0
KEY = WORD_BYTES  # bytes into a slot's line

Ints = NDArray[np.int64]


class TierArena:
    """A mapping of it."""

    def __init__(self, fd: int, sizes: TierSizes) -> None:
        self.sizes = sizes
        self.map = mmap.mmap(fd, sizes.total)
        self._view = memoryview(self.map)
        self._header: Ints = np.ndarray(HEADER_BYTES // WORD_BYTES, np.int64, self.map, 0)
        shape = sizes.engines, LINE_WORDS
        self._settled: Ints = np.ndarray(shape, np.int64, self.map, HEADER_BYTES)[:, 0]
        self._leases: Ints = np.ndarray((sizes.most_slots, sizes.engines), np.int64, self.map, sizes.leases)
        lines = np.ndarray((sizes.most_slots, LINE_WORDS), np.int64, self.map, sizes.slots)
        self._full: Ints = lines[:, FULL]

    # --- anyone --------------------------------------------------------------------------------------------------

    @property
    def slot_bytes(self) -> int:
        return int(self._header[SLOT_BYTES])

    @property
    def count(self) -> int:
        """Slots that there are; none before it is formatted."""
        return int(self._header[COUNT]) if int(self._header[IS]) == MAGIC else 0

    @property
    def fingerprint(self) -> bytes:
        """Of what the slots' contents mean."""
        return self.map[CACHE_LINE : CACHE_LINE + FINGERPRINT_BYTES]

    def data(self, slot: int) -> memoryview:
        """A slot's contents."""
        if not 0 <= slot < self.count:
            raise ValueError(f"slot {slot} of {self.count}")
        start = self.sizes.data + slot * _stride(self.slot_bytes)
        return self._view[start : start + self.slot_bytes]

    # --- a scheduler ---------------------------------------------------------------------------------------------

    def settle(self, engine: int, number: int) -> None:
        """The fetches of this engine below the number are over."""
        self._settled[engine] = number  # SYNC: kv_tier.settled, pairs with is_leased

    # --- the porter ----------------------------------------------------------------------------------------------

    def format(self, fingerprint: bytes, slot_bytes: int) -> None:
        """All slots are empty, and for contents of this kind. Only while nothing is leased."""
        self._header[IS] = 0
        store_fence()
        self._full.fill(0)
        self._header[SLOT_BYTES] = slot_bytes
        self._header[COUNT] = self.sizes.bytes // _stride(slot_bytes)
        self.map[CACHE_LINE : CACHE_LINE + FINGERPRINT_BYTES] = fingerprint
        store_fence()
        self._header[IS] = MAGIC

    def found(self) -> dict[bytes, int]:
        """What a predecessor has left: slots by their keys."""
        return {self._key(slot): slot for slot in np.flatnonzero(self._full[: self.count]).tolist()}

    def ask_to_forget(self) -> None:
        """What is kept outside of this memory is to be forgotten: a successor finds that it is not yet."""
        self._header[ASKED] += 1

    @property
    def to_forget(self) -> int:
        """The number of the last such wish that has not been done; 0 if all have."""
        asked = int(self._header[ASKED])
        return asked if asked != int(self._header[FORGOTTEN]) else 0

    def has_forgotten(self, wish: int) -> None:
        """All up to this one are done."""
        self._header[FORGOTTEN] = wish

    def _key(self, slot: int) -> bytes:
        start = self.sizes.slots + slot * CACHE_LINE + KEY
        return self.map[start : start + HASH_BYTES]

    def empty(self, slot: int) -> memoryview:
        """It is not found any more, and may be written; `fill` ends that."""
        self._full[slot] = 0
        store_fence()
        return self.data(slot)

    def fill(self, slot: int, key: bytes) -> None:
        """Its contents are whole."""
        start = self.sizes.slots + slot * CACHE_LINE + KEY
        self.map[start : start + HASH_BYTES] = key
        store_fence()
        self._full[slot] = 1

    def lease(self, slot: int, engine: int, number: int) -> None:
        """This fetch has it: its contents stay until that is settled."""
        self._leases[slot, engine] = max(number, int(self._leases[slot, engine]))
        store_fence()

    def is_leased(self, slot: int) -> bool:
        """Has a fetch it that is not over?"""
        load_fence()
        return bool((self._leases[slot] >= np.maximum(self._settled, 1)).any())

    @property
    def in_use(self) -> bool:
        """Is any slot leased?"""
        return bool((self._leases[: self.count] >= np.maximum(self._settled, 1)).any())


def _stride(slot_bytes: int) -> int:
    """From one slot's contents to the next one's."""
    return max(LEAST_SLOT, whole(slot_bytes, CACHE_LINE))
