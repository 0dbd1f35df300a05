"""Prefix caching: which blocks of a sequence are computed already, and which the cache is offered.

Block i's hash covers all tokens up to its end (block_hash.py), so that equal hashes mean equal prefixes. The renderer
writes those of the prompt into the table; those of generated tokens are computed here when a block is full.
"""

from __future__ import annotations

from actorserve.shm.kv_map.notes import BlockNotes
from actorserve.shm.table.table import RequestTable

from ...protocol.block_hash import HASH_BYTES, extend_hashes
from ..batch import NEVER, Ints, RunningBatch
from ..sequence import Sequence
from .blocks import BlockPool
from .snapshots import Save, Snapshots
from .windows import WindowTables


class PrefixCache:
    """Ties sequences to the pool's cached blocks; counts queries and hits in tokens."""

    def __init__(
        self,
        table: RequestTable,
        pool: BlockPool,
        windows: WindowTables,
        snapshots: Snapshots,
        block_size: int,
        enabled: bool,
    ) -> None:
        self.table = table
        self.pool = pool
        self.windows, self.snapshots = windows, snapshots
        self.block_size = block_size
        self.enabled = enabled
        self.notes: BlockNotes | None = None  # where somebody is told of blocks
        self.queries = 0
        self.hits = 0

    def match(self, sequence: Sequence) -> list[int]:
        """The cached blocks of a sequence's longest computed prefix; one token at least is left to compute."""
        blocks = self.pool.match(self.keys(sequence))
        return blocks[: self._usable(sequence, len(blocks))]

    def keys(self, sequence: Sequence) -> list[bytes]:
        """Of all blocks that `match` may find; what is not cacheable has none."""
        if not self.enabled or not sequence.cacheable:
            return []
        full = (sequence.num_tokens - 1) // self.block_size
        self._hash_up_to(sequence, full)
        return sequence.hashes[:full]

    def _usable(self, sequence: Sequence, count: int) -> int:
        """How many of the first `count` blocks can be gone on behind: with all that windows and states need, and in no
        picture whose tokens see one another.
        """
        hashes, size = sequence.hashes, self.block_size
        while True:
            found = self.snapshots.longest(hashes, self.windows.longest(hashes, count))
            found = sequence.pictures.before(found * size) // size
            if found == count:
                return count
            count = found

    def count_start(self, sequence: Sequence, computed: int) -> None:
        """Count a start; the first one of a sequence is what its client is told as cached_tokens."""
        if sequence.has_run:
            return
        sequence.has_run = True
        self.queries += sequence.num_prompt_tokens
        self.hits += computed
        self.table.set_cached(sequence.ref, min(computed, sequence.num_prompt_tokens))

    def offer(self, batch: RunningBatch, rows: Ints) -> None:
        """Register the blocks of these rows that are now computed to their end."""
        if not self.enabled:
            return
        full = batch.num_confirmed_tokens[rows] // self.block_size
        moved = full > batch.num_offered_blocks[rows]
        for row, count in zip(rows[moved].tolist(), full[moved].tolist(), strict=True):
            sequence = batch.at(row)
            self._hash_up_to(sequence, count)
            for index in range(int(batch.num_offered_blocks[row]), count):
                self.note(sequence.blocks[index], sequence, index)
                self.pool.register(sequence.blocks[index], sequence.hashes[index])
                self.windows.offer(sequence, index, sequence.hashes[index])
            batch.num_offered_blocks[row] = count

    def note(self, block: int, sequence: Sequence, index: int) -> None:
        """Its block number `index` is this one: to be said before the map calls it cached."""
        if self.notes is None or self.pool.is_cached(block):
            return
        start = index * self.block_size
        if sequence.pictures.are_before(start + self.block_size):  # where these stand the log has fillers
            self.notes.write_untold(block)
            return
        tokens = self.table.token_ids(sequence.ref, start, start + self.block_size)
        parent = sequence.hashes[index - 1] if index else None
        self.notes.write(block, parent, sequence.adapter, memoryview(tokens).cast("B"))

    def settle(self, batch: RunningBatch, rows: Ints, saves: list[Save]) -> None:
        """Behind `offer`: let go of what these rows see no more, and keep what a step has saved."""
        for save in saves:
            known = batch.ticket[save.row] == save.ticket and batch.num_offered_blocks[save.row] != NEVER
            key = None
            if known and self.enabled:
                sequence, count = batch.at(save.row), save.end // self.block_size
                self._hash_up_to(sequence, count)
                key = sequence.hashes[count - 1]
            self.snapshots.made(save, key)
        if self.windows.tables:
            for row in rows.tolist():
                self.windows.trim(batch.at(row), int(batch.num_confirmed_tokens[row]))

    def forget(self) -> int:
        """No prefix is found any more; returns how many blocks could be."""
        dropped = self.pool.forget_cache()
        self.snapshots.pool.forget_cache()
        return dropped

    def _hash_up_to(self, sequence: Sequence, count: int) -> None:
        """Know the hashes of the sequence's first `count` blocks."""
        if not sequence.hashes:
            packed = bytes(self.table.hashes(sequence.ref))
            sequence.hashes = [packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES)]
        have = len(sequence.hashes)
        if have >= count:
            return
        first = have * self.block_size
        tokens = self.table.token_ids(sequence.ref, first, count * self.block_size)
        previous, spans = sequence.hashes[-1] if have else sequence.salt, sequence.pictures.spans
        packed = extend_hashes(previous, tokens, self.block_size, first, spans)
        sequence.hashes += [packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES)]
