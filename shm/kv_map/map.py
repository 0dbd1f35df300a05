"""The KV map: whose KV lies in which block of the worker's memory, and whose end was told, for the next scheduler.

The scheduler alone writes it, and nobody reads it while that lives: what counts is what a death between any two stores
leaves behind, and for that the order in which one thread stores is enough. Where it lies says layout.py:
    header    worker: incarnation whose KV memory this is about, 0 for none | blocks of that memory
              takeovers: successors that have begun with it since the last step came back
              pause: whether steps are planned (pause.py); sleep (sleep.py): both are of the engine, whoever its worker
              is
    a slot    held: generation << 32 | blocks in its table, 0 for none
              computed: generation << 32 | tokens whose KV is certainly in these blocks; counts only while it holds any
              announced: generation whose end the detokenizer was told; that is no matter of a worker
              stale: generation that held its blocks when the cache was reset: no prefix is to be found in them
              table: int32, the blocks in the order of the tokens
    a block   cached (a byte): its 16-byte hash is valid, and so are its contents
              version: how often it has become or ceased to be cached; larger before the flag changes (reader.py)
    a snapshot of states (where the worker's model has some)   cached: likewise
    index     for other actors' looks alone, where there is one (index.py)
Knows neither why a block is held nor what a hash is made of.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..fence import store_fence
from ..layout import HASH_BYTES, LOW32
from .index import IndexWriter
from .layout import BLOCKS, HEADER_WORDS, TAKEOVERS, WORKER, kv_map_bytes, kv_map_places
from .pause import PauseWord
from .sleep import SleepWord

__all__ = ["KVMap", "kv_map_bytes"]

Ints = NDArray[np.int64]


class CachedKeys:
    """Which of some numbered things are found again, each by a hash: a block by its prefix, a snapshot by its own."""

    def __init__(self, memory: mmap.mmap, hashes: int, flags: int, count: int, versions: int | None = None) -> None:
        """At these offsets of `memory`. `versions` of those that somebody else reads."""
        self.count = count
        self._memory, self._hashes = memory, hashes
        self.flags: NDArray[np.uint8] = np.ndarray(count, np.uint8, memory, flags)
        self._versions: Ints | None = None if versions is None else np.ndarray(count, np.int64, memory, versions)

    def cache(self, index: int, key: bytes) -> None:
        """Its contents are final and found by `key`; it was not cached. Who has looked between the two stores of
        `uncache` has the version that it had until now, and would take these contents for those of the key before.
        """
        start = self._hashes + HASH_BYTES * index
        self._memory[start : start + HASH_BYTES] = key
        if self._versions is not None:
            self._versions[index] += 1  # SYNC: kv_map.version, pairs with CachedBlocks.holds
        store_fence()
        self.flags[index] = 1  # SYNC: kv_map.cached, pairs with CachedBlocks.look

    def uncache(self, index: int) -> None:
        """It may be written again. To be stored before it is given away."""
        if self._versions is not None:
            self._versions[index] += 1  # SYNC: kv_map.version, pairs with CachedBlocks.holds
            store_fence()
        self.flags[index] = 0

    def reset_cache(self) -> int:
        """Nothing is found any more; returns how many were."""
        found = int(np.count_nonzero(self.flags))
        if self._versions is not None:
            self._versions += 1
            store_fence()
        self.flags.fill(0)
        return found

    def cached(self) -> dict[int, bytes]:
        """The keys of all that are found."""
        starts = self._hashes + HASH_BYTES * (found := np.flatnonzero(self.flags))
        keys = (self._memory[start : start + HASH_BYTES] for start in starts.tolist())
        return dict(zip(found.tolist(), keys, strict=True))


class KVMap:
    """A view of the map at `offset` (a multiple of 8) of zeroed memory, which is a map of no worker."""

    def __init__(
        self,
        memory: mmap.mmap,
        offset: int,
        slots: int,
        sequence_blocks: int,
        blocks: int,
        snapshots: int = 0,
        groups: int = 0,
    ) -> None:
        """`groups` of an index, by which others find what is cached; none if there is nobody else."""
        self.sequence_blocks, self.blocks = sequence_blocks, blocks
        places = kv_map_places(offset, slots, sequence_blocks, blocks, snapshots, groups)
        self._header: Ints = np.ndarray(HEADER_WORDS, np.int64, memory, places.header)
        self.pause = PauseWord(memory, offset)
        self.sleep = SleepWord(memory, offset)
        self._held: Ints = np.ndarray(slots, np.int64, memory, places.held)
        self._computed: Ints = np.ndarray(slots, np.int64, memory, places.computed)
        self._announced: Ints = np.ndarray(slots, np.int64, memory, places.told)
        self._stale: Ints = np.ndarray(slots, np.int64, memory, places.stale)
        self._tables: NDArray[np.int32] = np.ndarray((slots, sequence_blocks), np.int32, memory, places.tables)
        self._keys = CachedKeys(memory, places.hashes, places.cached, blocks, places.versions)
        self.snapshots = CachedKeys(memory, places.snapshot_hashes, places.saved, snapshots)
        at = places.entries, places.hashes
        self._index = IndexWriter(memory, at, self._keys.flags, groups) if groups else None

    @classmethod
    def private(cls, slots: int, sequence_blocks: int, blocks: int, snapshots: int = 0) -> KVMap:
        """A map that ends with this process, for a scheduler that has no successor."""
        sizes = slots, sequence_blocks, blocks, snapshots
        return cls(mmap.mmap(-1, kv_map_bytes(*sizes)), 0, *sizes)

    # --- whose memory it is about --------------------------------------------------------------------------------

    def describes(self, worker: int, blocks: int) -> bool:
        """Is this the map of this worker's memory?"""
        return worker > 0 and self._header[:TAKEOVERS].tolist() == [worker, blocks]

    def is_of(self, since: int, worker: int, blocks: int) -> bool:
        """Is this the map of the memory that lives `since` that one have had, up to this worker? 0: it is its own."""
        first = since or worker
        return int(self._header[BLOCKS]) == blocks and 0 < first <= int(self._header[WORKER]) <= worker

    def pass_on(self, worker: int) -> None:
        """The memory is this worker's now."""
        self._header[WORKER] = worker

    def disown(self) -> None:
        """What the map says counts no more."""
        self._header[WORKER] = 0

    def begin(self, worker: int, blocks: int) -> None:
        """Nothing is held or cached in this worker's memory. It is about no worker until all of that is stored."""
        if blocks > self.blocks:
            raise ValueError(f"a map for {self.blocks} KV blocks cannot be one of {blocks}")
        self.disown()
        self._held.fill(0)
        self._keys.reset_cache()
        self.snapshots.reset_cache()
        self._header[BLOCKS] = blocks
        self._header[TAKEOVERS] = 0
        self._header[WORKER] = worker

    def begin_takeover(self) -> int:
        """Count a successor that begins with this map; returns how many have since the map was last proven."""
        self._header[TAKEOVERS] += 1
        return int(self._header[TAKEOVERS])

    def prove(self) -> None:
        """A step has come back: whoever goes by this map gets so far."""
        self._header[TAKEOVERS] = 0

    # --- what a sequence holds -----------------------------------------------------------------------------------

    def hold(self, ref: int, blocks: Sequence[int], computed: int) -> None:
        """A sequence that holds nothing takes these blocks; the first `computed` tokens are in them already."""
        slot, generation = ref & LOW32, ref >> 32 << 32
        self._computed[slot] = generation | computed
        self._tables[slot, : len(blocks)] = blocks
        self._stale[slot] = 0
        self._held[slot] = generation | len(blocks)

    def grow(self, ref: int, index: int, block: int) -> None:
        """The sequence takes one more block, number `index` of its table."""
        slot = ref & LOW32
        self._tables[slot, index] = block
        self._held[slot] = ref >> 32 << 32 | index + 1

    def confirm(self, slots: Ints, generations: Ints, counts: Ints) -> None:
        """The first `counts` tokens of these slots are computed (one 8-byte move each, see TableArrays)."""
        self.confirm_words(slots, generations << 32 | counts)

    def confirm_words(self, slots: Ints, words: Ints) -> None:
        """The same by the words that say so: generation << 32 | count."""
        self._computed[slots] = words

    def release(self, slot: int) -> None:
        """The slot holds nothing. To be stored before its blocks are given to another."""
        self._held[slot] = 0

    def holders(self) -> list[int]:
        """The refs that hold blocks."""
        slots = np.flatnonzero(self._held)
        refs: list[int] = (self._held[slots] >> 32 << 32 | slots).tolist()
        return refs

    def held(self, ref: int) -> NDArray[np.int32]:
        """The blocks that the holder's table names; none if their number cannot be."""
        count = int(self._held[ref & LOW32]) & LOW32
        return self._tables[ref & LOW32, : count if count <= self.sequence_blocks else 0]

    def computed(self, ref: int) -> int | None:
        """Tokens that are computed in the holder's blocks; None where an earlier use of the slot is spoken of."""
        word = int(self._computed[ref & LOW32])
        return word & LOW32 if word >> 32 == ref >> 32 else None

    def set_announced(self, ref: int) -> None:
        """The message that this sequence has ended is published."""
        self._announced[ref & LOW32] = ref >> 32

    def is_announced(self, ref: int) -> bool:
        return bool(self._announced[ref & LOW32] == ref >> 32)

    # --- what a block stands for ---------------------------------------------------------------------------------

    def cache(self, block: int, key: bytes) -> None:
        """The block's contents are final and found by `key`; it was not cached."""
        self._keys.cache(block, key)
        if self._index is not None:
            self._index.add(block, key)

    def uncache(self, block: int) -> None:
        """The block may be written again. To be stored before it is given away."""
        self._keys.uncache(block)

    def reset_cache(self) -> int:
        """No block is found by its prefix any more, nor any that is held now when it is full; returns how many were.

        A death at any store leaves a map that can be gone on with: blocks that are still found, and holders that offer
        no more. Whoever ordered it has no answer then, and it is done again.
        """
        self._stale[:] = self._held >> 32
        return self._keys.reset_cache()

    def is_stale(self, ref: int) -> bool:
        """Has the cache been reset since this holder took its blocks?"""
        return bool(self._stale[ref & LOW32] == ref >> 32)

    def cached(self) -> dict[int, bytes]:
        """The keys of all cached blocks."""
        return self._keys.cached()
