"""Rows and blocks of running sequences: given, added to, and taken back from whoever ranks last where none is free.

Who holds what is in the KV map before the worker hears of it.
"""

from __future__ import annotations

import numpy as np

from actorserve.shm.kv_map.map import KVMap

from ...protocol.step import MOST_NEW_BLOCKS
from ..batch import Ints, RunningBatch
from ..sequence import Sequence
from ..waiting import WaitingQueue
from .blocks import BlockPool
from .prefix_cache import PrefixCache
from .windows import Entries

NUM_SPARE_BLOCKS = 4  # room that a new sequence is given behind its prompt, if there is any


class Allocation:
    """Of one epoch."""

    def __init__(
        self, batch: RunningBatch, pool: BlockPool, waiting: WaitingQueue, prefix: PrefixCache, kv: KVMap
    ) -> None:
        self._batch, self._pool, self._waiting, self._prefix, self._kv = batch, pool, waiting, prefix, kv
        self._windows = prefix.windows
        self.new_blocks: Entries = []  # of the step that is being planned
        self._grown = 0  # of them, those of rows that have begun before
        self.preemptions = 0
        self.preempted: list[int] = []  # refs, until they are recorded

    def begin_plan(self) -> None:
        """Nothing is given out yet."""
        self.new_blocks, self._grown = [], 0

    def start(self, sequence: Sequence, soon: int) -> int | None:
        """Move a waiting sequence into a row, behind what is cached of it. None if its blocks are not there: all of the
        first table, and of the others those of the next `soon` tokens.
        """
        size = self._prefix.block_size
        cached = self._prefix.match(sequence)
        needed = -(-sequence.num_tokens // size) - len(cached)
        computed = len(cached) * size
        self._pool.hold(cached)  # before allocating, which may evict what nobody holds
        self._windows.begin(sequence, len(cached))
        num_spare = min(NUM_SPARE_BLOCKS, -(-sequence.max_num_tokens // size) - len(cached) - needed)
        of_windows = self._windows.missing(sequence, -(-min(sequence.num_tokens, computed + soon) // size))
        blocks = None
        if needed + of_windows <= self._pool.free:
            blocks = self._pool.allocate(needed, after=cached[-1] if cached else None, num_spare=num_spare)
        if blocks is None:
            self._windows.release(sequence)
            self._pool.release(cached)
            return None
        self._waiting.remove(sequence.ref)
        sequence.blocks, sequence.encoded, sequence.looked = cached + blocks, 0, 0
        capacity = self._windows.end(sequence) if self._windows.tables else len(sequence.blocks)
        row = self._batch.place(sequence, computed, capacity * size, len(cached))
        self._prefix.count_start(sequence, computed)
        self._kv.hold(sequence.ref, sequence.blocks, computed)
        self.new_blocks += self._windows.entries(sequence, sequence.window_first)
        return row

    def rows_with_room(self, decode: Ints) -> Ints:
        """Add a block where the next token needs one. Rows that were preempted for it are left out, and those whose
        blocks are for a later step to tell of.
        """
        batch = self._batch
        short = decode[batch.num_computed_tokens[decode] + 1 > batch.num_block_tokens[decode]]
        most = max(1, MOST_NEW_BLOCKS // (1 + self._windows.tables))  # without any nobody would go on
        if len(later := short[most:]):
            decode, short = decode[~np.isin(decode, later)], short[: -len(later)]
        for row in short.tolist():
            if batch.ticket[row]:  # not preempted for one before it
                self.grow(batch.at(row))
        if len(short):
            decode = decode[batch.ticket[decode] > 0]
            self.new_blocks = [entry for entry in self.new_blocks if batch.ticket[entry[0]]]
        return decode

    def add_for_drafts(self, decode: Ints, want: Ints) -> Ints:
        """How many drafts each of these rows has room for beside its next token: up to so many, as far as blocks can be
        added without taking any.
        """
        batch = self._batch
        short = decode[batch.num_computed_tokens[decode] + 1 + want > batch.num_block_tokens[decode]]
        for row in short.tolist():
            if self._pool.free <= len(batch) * (1 + self._windows.tables) or self._grown >= MOST_NEW_BLOCKS:
                break
            self.grow(batch.at(row))
        room: Ints = np.minimum(want, batch.num_block_tokens[decode] - batch.num_computed_tokens[decode] - 1)
        return room

    def grow(self, sequence: Sequence) -> None:
        """One more block in each table, from whoever ranks last if none is free: that may be the sequence itself."""
        assert sequence.row is not None
        size, before = self._prefix.block_size, len(self.new_blocks)
        end = int(self._batch.num_block_tokens[sequence.row]) // size + 1
        own = max(0, end - len(sequence.blocks))
        while self._pool.free < own + self._windows.missing(sequence, end):
            victim = max(self._batch.running(), key=self._waiting.rank)
            self.preempt(victim)
            if victim is sequence:
                return
        for block in (self._pool.allocate(own, after=sequence.blocks[-1]) or ()) if own else ():
            self._kv.grow(sequence.ref, len(sequence.blocks), block)
            self.new_blocks.append((sequence.row, len(sequence.blocks), block))
            sequence.blocks.append(block)
        self.new_blocks += self._windows.grow(sequence, end)
        self._grown += len(self.new_blocks) - before
        self._batch.num_block_tokens[sequence.row] = end * size

    def reach(self, row: int, count: int) -> int:
        """How many of a row's next `count` tokens have room in its tables of windows, which are added to for them."""
        windows, size = self._windows, self._prefix.block_size
        if not windows.tables:
            return count
        sequence, computed = self._batch.at(row), int(self._batch.num_computed_tokens[row])
        end = -(-(computed + count) // size)
        free = self._pool.free if self._grown < MOST_NEW_BLOCKS else 0  # what is told of more is for a later step
        if windows.missing(sequence, end) > free:
            end = windows.end(sequence) + free // windows.tables
            count = max(0, min(count, end * size - computed))
        grown = windows.grow(sequence, end)
        self.new_blocks += grown
        self._grown += len(grown)
        self._batch.num_block_tokens[row] = min(len(sequence.blocks), windows.end(sequence)) * size
        return count

    def preempt(self, sequence: Sequence) -> None:
        """Take row and blocks away; it waits, and is computed again from its log. Sampled tokens still come back."""
        self.preemptions += 1
        self.preempted.append(sequence.ref)
        self._batch.remove(sequence)
        self.release(sequence)
        self._waiting.add(sequence)

    def release(self, sequence: Sequence) -> None:
        """All its blocks are free."""
        self._kv.release(sequence.slot)
        self._pool.release(sequence.blocks)
        self._windows.release(sequence)
        sequence.blocks = []
