"""KV maps that no scheduler can have left, each with one thing wrong: they are not believed, all is computed again."""

from __future__ import annotations

import pytest

from actorserve.actors.scheduler.recovery.takeover import Contradiction
from actorserve.shm.table.table import generation_of, make_ref, slot_of

from ..engine_model import Bench, finish_all, running_bench


def block_out_of_range(bench: Bench, ref: int) -> None:
    bench.kv._tables[slot_of(ref), 1] = bench.num_blocks


def block_below_zero(bench: Bench, ref: int) -> None:
    bench.kv._tables[slot_of(ref), 1] = -1


def block_twice(bench: Bench, ref: int) -> None:
    bench.kv._tables[slot_of(ref), 1] = bench.kv._tables[slot_of(ref), 0]


def block_of_another(bench: Bench, ref: int) -> None:
    other = next(holder for holder in bench.kv.holders() if holder != ref)
    bench.kv._tables[slot_of(ref), 0] = bench.kv.held(other)[-1]


def shared_elsewhere(bench: Bench, ref: int) -> None:
    other = next(holder for holder in bench.kv.holders() if holder != ref)
    bench.kv._tables[slot_of(ref), 0] = bench.kv.held(other)[1]


def no_blocks(bench: Bench, ref: int) -> None:
    bench.kv._held[slot_of(ref)] = make_ref(0, 0) | generation_of(ref) << 32


def more_blocks_than_a_table_has(bench: Bench, ref: int) -> None:
    bench.kv._held[slot_of(ref)] = generation_of(ref) << 32 | 10_000


def too_few_blocks(bench: Bench, ref: int) -> None:
    bench.kv._held[slot_of(ref)] = generation_of(ref) << 32 | 1


def computed_beyond_the_log(bench: Bench, ref: int) -> None:
    bench.kv._computed[slot_of(ref)] = generation_of(ref) << 32 | 200


def computed_of_another_use(bench: Bench, ref: int) -> None:
    bench.kv._computed[slot_of(ref)] += 1 << 32


def written_block_is_cached(bench: Bench, ref: int) -> None:
    bench.kv.cache(int(bench.kv.held(ref)[-1]), b"x" * 16)


def cached_twice(bench: Bench, ref: int) -> None:
    bench.kv.cache(bench.num_blocks - 1, next(iter(bench.kv.cached().values())))


def cached_out_of_range(bench: Bench, ref: int) -> None:
    bench.kv._keys.flags[bench.num_blocks] = 1


DAMAGES = [
    block_out_of_range, block_below_zero, block_twice, block_of_another, shared_elsewhere, no_blocks, too_few_blocks,
    more_blocks_than_a_table_has, computed_beyond_the_log, computed_of_another_use, written_block_is_cached,
    cached_twice, cached_out_of_range,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_map_that_cannot_be_is_not_believed(damage) -> None:  # type: ignore[no-untyped-def]
    bench, prompts = running_bench(spare_blocks=1)
    bench.birth()
    damage(bench, next(iter(prompts)))
    with pytest.raises(Contradiction):
        bench.meet_worker()
    bench.new_epoch()
    finish_all(bench, prompts)


def test_a_shared_block_that_is_written_is_not_believed() -> None:
    """Not even if it has the same place in both tables."""
    bench, prompts = running_bench(prefix_caching=False)
    short, *_, long = prompts
    last = len(bench.kv.held(short)) - 1
    bench.kv._tables[slot_of(short), last] = bench.kv.held(long)[last]
    with pytest.raises(Contradiction, match="shared"):
        bench.new_scheduler()


def test_integrity_is_also_that_of_the_map() -> None:
    for damage in (block_of_another, computed_beyond_the_log, no_blocks, cached_twice):
        bench, prompts = running_bench()
        bench.scheduler.check_integrity()
        damage(bench, next(iter(prompts)))
        with pytest.raises(AssertionError):
            bench.scheduler.check_integrity()


def test_more_holders_than_rows_are_not_believed() -> None:
    bench, _ = running_bench()
    bench.limits = bench.limits.__class__(**{**bench.limits.__dict__, "max_num_seqs": 3})
    with pytest.raises(Contradiction):
        bench.new_scheduler()
