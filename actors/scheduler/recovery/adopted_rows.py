"""Rows of a predecessor, or of the worker's life before: they go on in the blocks that the KV map says are theirs."""

from __future__ import annotations

from collections import deque

from actorserve.shm.kv_map.map import KVMap

from ..batch import NEVER, RunningBatch
from ..lora.adapters import Adapters
from ..planned_step import NewRows
from ..sequence import Sequence
from ..waiting import WaitingQueue


class AdoptedRows:
    """Those of which the worker is not told yet."""

    def __init__(self, batch: RunningBatch, waiting: WaitingQueue, kv: KVMap, block_size: int) -> None:
        self._batch, self._waiting, self._kv, self._block_size = batch, waiting, kv, block_size
        self._rows: deque[tuple[Sequence, int]] = deque()  # with their tickets

    def adopt(self, sequence: Sequence, blocks: list[int], computed: int) -> None:
        """It goes on in blocks that it held, once the worker is told in which row."""
        self._waiting.remove(sequence.ref)
        sequence.blocks = blocks
        sequence.has_run = True
        registered = NEVER if self._kv.is_stale(sequence.ref) else 0
        row = self._batch.place(sequence, computed, len(blocks) * self._block_size, registered)
        self._batch.is_announced[row] = False
        self._rows.append((sequence, int(self._batch.ticket[row])))

    def announce(self, adapters: Adapters | None, new: NewRows) -> None:
        """Those that are still there, as many as a step may tell of; one may yet be preempted in this plan. One whose
        adapter the worker has not read yet keeps its blocks and waits.
        """
        wait: list[tuple[Sequence, int]] = []
        while self._rows and not new.is_full:
            sequence, ticket = self._rows.popleft()
            row = sequence.row
            if row is None or self._batch.ticket[row] != ticket or self._batch.is_announced[row]:
                continue
            if adapters is not None and not adapters.is_there(sequence.adapter):
                wait.append((sequence, ticket))
                continue
            self.announce_row(sequence, row, new)
        self._rows.extendleft(reversed(wait))

    def announce_row(self, sequence: Sequence, row: int, new: NewRows) -> None:
        """This one."""
        self._batch.is_announced[row] = True
        new.add(sequence.new_row(row, int(self._batch.num_computed_tokens[row])))
