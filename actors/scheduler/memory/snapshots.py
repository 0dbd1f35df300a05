"""Snapshots of what layers keep of a sequence as a whole, at ends of blocks: who begins with a cached prefix needs one.

A snapshot is free, or being made by a step in flight, or found by the hash of the prefix whose end it stands at; the
least recently used is given up for the next. It is found only when the step that made it has come back, and is found
no more before it is given away, as it is with blocks (blocks.py); the KV map says the same to a successor. Steps run in
order: a row that was told to begin at a snapshot has done so before anyone's step writes to it anew.

Where they are made: at the last block's end of a prompt, for whoever has the same, and every INTERVAL tokens, so that
a longer conversation, or one that was preempted, computes no more than that again.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

from actorserve.shm.kv_map.map import CachedKeys

from ...protocol.step import KVLayout
from ..batch import NEVER, Ints, RunningBatch
from ..sequence import Sequence
from .blocks import BlockPool

INTERVAL = 512  # tokens
MOST_BY_TOKEN = 32  # of a row in a step, each a pass: whoever computes a step hears nothing meanwhile


class Save(NamedTuple):
    """A snapshot that a step makes of a row's states behind its first `end` tokens."""

    row: int
    ticket: int
    snapshot: int
    end: int


class Snapshots:
    """Those of one epoch. `needed`: the model has states, so that no prefix is of use without."""

    def __init__(self, layout: KVLayout, count: int, keys: CachedKeys, block_size: int) -> None:
        """`keys` is the KV map's part."""
        self.needed, self._by_token = layout.states, layout.by_token
        self.pool = BlockPool(count, keys)
        self.made_count = 0
        self._size = block_size
        self._interval = -(-INTERVAL // block_size) * block_size

    def longest(self, hashes: Items[bytes], count: int) -> int:
        """Of the prefixes of up to `count` blocks the longest that has one, in blocks."""
        if not self.needed:
            return count
        return next((end for end in range(count, 0, -1) if self.pool.find(hashes[end - 1]) is not None), 0)

    def find(self, key: bytes) -> int:
        """The snapshot of this prefix, which was used now."""
        found = self.pool.match([key])
        self.pool.hold(found)
        self.pool.release(found)
        return found[0]

    def cut(self, sequence: Sequence, computed: int, count: int) -> int:
        """How many of its next `count` tokens may be computed at once: a step ends where a snapshot is wanted,
        and is no longer than its worker may be deaf."""
        if self._by_token and computed:
            count = min(count, MOST_BY_TOKEN)
        if not self.pool.count or not sequence.cacheable:
            return count
        return min(count, self._next(sequence, computed) - computed)

    def plan(self, batch: RunningBatch, rows: Ints, counts: Ints) -> list[Save]:
        """Which snapshots a step makes, of those of its rows that are to be at the end of a block."""
        if not self.pool.count:
            return []
        ends = batch.num_computed_tokens[rows] + counts
        whole = (ends % self._size == 0) & (batch.num_offered_blocks[rows] != NEVER)
        saves = []
        for row, end in zip(rows[whole].tolist(), ends[whole].tolist(), strict=True):
            sequence = batch.at(row)
            if sequence.cacheable and self._next(sequence, end - 1) == end and not self._known(sequence, end):
                if (made := self.pool.allocate(1)) is None:
                    break
                saves.append(Save(row, int(batch.ticket[row]), made[0], end))
        return saves

    def made(self, save: Save, key: bytes | None) -> None:
        """Its step has come back: it is found by `key`; None: by nothing, for nobody knows what it stands for."""
        if key is not None:
            self.made_count += 1
            self.pool.register(save.snapshot, key)
        self.pool.release([save.snapshot])

    def _next(self, sequence: Sequence, computed: int) -> int:
        """The next end of a block behind the `computed` first tokens where one is wanted."""
        regular = (computed // self._interval + 1) * self._interval
        last = (sequence.num_prompt_tokens - 1) // self._size * self._size
        return min(regular, last) if last > computed else regular

    def _known(self, sequence: Sequence, end: int) -> bool:
        """Whether there is one already, as far as can be said: tokens in flight have no hash yet."""
        count = end // self._size
        return len(sequence.hashes) >= count and self.pool.find(sequence.hashes[count - 1]) is not None
