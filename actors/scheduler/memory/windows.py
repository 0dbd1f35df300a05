"""Blocks of layers that see a window: each such block table holds what may still be seen, and lets go of the rest.

The layers of a model whose windows are freed are divided into tables of as many layers each as see everything, so that
a block is the same number of bytes in any table and one pool serves all (worker/cpu/memory/window_tables.py). Of a
sequence the first table has all blocks (sequence.blocks); the others have those from `window_first` on. A block is let
go when no token that may yet be computed sees it: steps in flight have read it by the time another sequence is given
it, and what a successor or a rejected draft computes again lies behind what is confirmed.

The prefix cache finds them by the prefix's hash with the table's number in it; a prefix can be gone on with where all
tables have what its next token sees. Who holds them is no matter of the KV map: a scheduler's successor finds them by
their hashes alone, and computes the rest again.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from ...protocol.step import KVLayout
from ..sequence import Sequence
from .blocks import BlockPool

Entries = list[tuple[int, int, int]]  # (row, index, block), as the worker is told


def key_of(key: bytes, table: int) -> bytes:
    """What a block of this table is found by, whose prefix has the hash `key`."""
    return bytes([key[0] ^ (table + 1)]) + key[1:]


class WindowTables:
    """Those of all sequences of one epoch; without any (`tables` 0) it has nothing to do."""

    def __init__(self, pool: BlockPool, layout: KVLayout, block_size: int, width: int) -> None:
        """`width`: blocks of the longest sequence."""
        self.tables = layout.window_tables
        self._pool, self._window, self._size, self._width = pool, layout.window, block_size, width

    def first_seen(self, computed: int) -> int:
        """The first block that a token behind the `computed` ones may see."""
        return max(0, computed - self._window + 1) // self._size

    def longest(self, hashes: Items[bytes], count: int) -> int:
        """Of the prefixes of up to `count` blocks the longest behind which a sequence can go on, in blocks."""
        end = index = count
        while self.tables and index > self.first_seen(end * self._size):
            index -= 1
            if any(self._pool.find(key_of(hashes[index], table)) is None for table in range(self.tables)):
                end = index
        return end

    def begin(self, sequence: Sequence, count: int) -> None:
        """It goes on behind a cached prefix of so many blocks, of which it holds what is seen."""
        sequence.window_first = self.first_seen(count * self._size)
        sequence.window_blocks.clear()
        for key in sequence.hashes[sequence.window_first : count] if self.tables else ():
            found = [self._pool.find(key_of(key, table)) for table in range(self.tables)]
            blocks = [block for block in found if block is not None]
            assert len(blocks) == self.tables, "a prefix was matched that is not cached in all tables"
            self._pool.hold(blocks)
            sequence.window_blocks.append(blocks)

    def missing(self, sequence: Sequence, end: int) -> int:
        """How many blocks it needs to have the first `end` of each table."""
        return self.tables * max(0, end - self.end(sequence))

    def end(self, sequence: Sequence) -> int:
        """The blocks of each table that it has come to."""
        return sequence.window_first + len(sequence.window_blocks)

    def entries(self, sequence: Sequence, first: int) -> Entries:
        """What the worker is told of its blocks from block `first` of each table on."""
        row = sequence.row
        assert row is not None
        own = list(sequence.window_blocks)[first - sequence.window_first :] if self.tables else []
        return [
            (row, (table + 1) * self._width + first + place, block)
            for place, blocks in enumerate(own)
            for table, block in enumerate(blocks)
        ]

    def grow(self, sequence: Sequence, end: int) -> Entries:
        """Have the first `end` blocks of each table, for which there is room (`missing`)."""
        first = self.end(sequence)
        count = end - first
        if not self.tables or count <= 0:
            return []
        last = sequence.window_blocks[-1] if sequence.window_blocks else [None] * self.tables
        columns = [self._pool.allocate(count, after=block) for block in last]
        for place in range(count):
            sequence.window_blocks.append([column[place] for column in columns if column is not None])
        return self.entries(sequence, first)

    def offer(self, sequence: Sequence, index: int, key: bytes) -> None:
        """Block `index` of each table is computed to its end."""
        if self.tables and index >= sequence.window_first:
            for table, block in enumerate(sequence.window_blocks[index - sequence.window_first]):
                self._pool.register(block, key_of(key, table))

    def trim(self, sequence: Sequence, confirmed: int) -> None:
        """Let go of what is seen no more when so many tokens have been computed for certain."""
        first = self.first_seen(confirmed)
        while sequence.window_first < first and sequence.window_blocks:
            self._pool.release(sequence.window_blocks.popleft())
            sequence.window_first += 1

    def release(self, sequence: Sequence) -> None:
        """Let go of all."""
        while sequence.window_blocks:
            self._pool.release(sequence.window_blocks.pop())
