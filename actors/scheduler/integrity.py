"""The invariants of a scheduler, checked by tests and when idle in debug."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actorserve.shm.table.table import generation_of, slot_of

from .batch import NEVER
from .sequence import Sequence

if TYPE_CHECKING:
    from .scheduler import Scheduler


def check_integrity(scheduler: Scheduler) -> None:
    """AssertionError says which invariant does not hold."""
    table, waiting = scheduler.table, scheduler.waiting
    scheduler.batch.check_integrity()
    running = scheduler.batch.running()
    scheduler.pool.check_integrity([sequence.blocks for sequence in running])
    count = len(running) + len(waiting)
    assert count == len(scheduler.sequences), "a sequence is neither running nor waiting"
    for sequence in scheduler.sequences.values():
        assert (sequence.row is None) == (sequence.ref in waiting)
        assert sequence.row is not None or not sequence.blocks, f"waiting {sequence.ref:x} holds blocks"
        assert not table.finish(sequence.ref), f"{sequence.ref:x} is finished and still known"
        assert slot_of(sequence.ref) == sequence.slot and generation_of(sequence.ref) > 0
    if scheduler.pool.count:  # before, the map is still a predecessor's
        _check_map(scheduler, running)


def _check_map(scheduler: Scheduler, running: list[Sequence]) -> None:
    """The KV map says what a successor is to know."""
    kv = scheduler.kv
    assert sorted(kv.holders()) == sorted(sequence.ref for sequence in running), "the KV map has other holders"
    for sequence in running:
        computed = scheduler.batch.confirmed[sequence.row]
        assert kv.held(sequence.ref).tolist() == sequence.blocks, f"slot {sequence.slot} has another table"
        assert kv.computed(sequence.ref) == computed, f"slot {sequence.slot}: {computed} tokens are confirmed"
        withheld = scheduler.batch.registered[sequence.row] == NEVER
        assert kv.is_stale(sequence.ref) == withheld, f"slot {sequence.slot}: withheld from the cache: {withheld}"
