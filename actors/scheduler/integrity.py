"""The invariants between a scheduler's parts, checked by tests and when idle in debug; each part has its own."""

from __future__ import annotations

from collections.abc import Iterable

from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.table.table import RequestTable, generation_of, slot_of

from .batch import NEVER, RunningBatch
from .lifecycle import Lifecycle
from .memory.blocks import BlockPool
from .memory.snapshots import Snapshots
from .planned_step import PlannedStep


def check_sequences(lifecycle: Lifecycle, batch: RunningBatch, table: RequestTable) -> None:
    """Each admitted sequence runs or waits. AssertionError says which invariant does not hold."""
    waiting = lifecycle.waiting
    count = len(batch.running()) + len(waiting)
    assert count == len(lifecycle.sequences), "a sequence is neither running nor waiting"
    for sequence in lifecycle.sequences.values():
        assert (sequence.row is None) == (sequence.ref in waiting)
        assert sequence.row is not None or not sequence.blocks, f"waiting {sequence.ref:x} holds blocks"
        assert not table.finish(sequence.ref), f"{sequence.ref:x} is finished and still known"
        assert slot_of(sequence.ref) == sequence.slot and generation_of(sequence.ref) > 0


def check_blocks(batch: RunningBatch, pool: BlockPool, kv: KVMap, fetched: Iterable[list[int]] = ()) -> None:
    """Blocks are held by those who run, or `fetched`; the KV map says what a successor is to know."""
    running = batch.running()
    windows = [blocks for sequence in running for blocks in sequence.window_blocks]
    pool.check_integrity([*(sequence.blocks for sequence in running), *windows, *fetched])
    if not pool.count:  # the map is still a predecessor's
        return
    assert sorted(kv.holders()) == sorted(sequence.ref for sequence in running), "the KV map has other holders"
    for sequence in running:
        computed = batch.num_confirmed_tokens[sequence.row]
        assert kv.held(sequence.ref).tolist() == sequence.blocks, f"slot {sequence.slot} has another table"
        assert kv.computed(sequence.ref) == computed, f"slot {sequence.slot}: {computed} tokens are confirmed"
        withheld = batch.num_offered_blocks[sequence.row] == NEVER
        assert kv.is_stale(sequence.ref) == withheld, f"slot {sequence.slot}: withheld from the cache: {withheld}"


def check_snapshots(in_flight: Iterable[PlannedStep], snapshots: Snapshots) -> None:
    """Each is free, found, or being made by one step in flight; the KV map knows of those that are found."""
    if snapshots.pool.count:
        snapshots.pool.check_integrity([[save.snapshot] for step in in_flight for save in step.saves])
