"""Sequences that end with their prompt: in one step where they must be whole, whoever dies meanwhile."""

from __future__ import annotations

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.request import Pooling, Sampling

from .engine_model import BLOCK, Bench, prompt_of

WHOLE, PARTS = (Sampling(seed=0, pooling=Pooling("embed", whole=whole)) for whole in (True, False))


def pooling_bench(sampling: Sampling, budget: int = 32) -> Bench:
    bench = Bench(max_num_batched_tokens=budget, pools=True)
    bench.sampling = sampling
    return bench


def sizes(bench: Bench) -> list[list[int]]:
    """Of each step, until nothing is left, the counts of its rows."""
    found = []
    while bench.plan() or bench.planned:
        while bench.plan():
            pass
        found.append(bench.planned[0].counts.tolist())
        bench.work()
    return found


def test_a_prompt_is_whole_in_one_step() -> None:
    """Several where they fit; one that is longer than any step, alone; a prompt that fits does not overtake."""
    bench = pooling_bench(WHOLE)
    lengths = [10, 20, 5, 60, 7, 32, 1]
    refs = [bench.submit(prompt_of(length, length), 1) for length in lengths]
    steps = sizes(bench)
    assert sorted(count for step in steps for count in step) == sorted(lengths)
    assert [60] in steps and all(sum(step) <= 32 or step == [60] for step in steps)
    assert [bench.table.finish(ref) for ref in refs] == [Finish.STOP] * len(refs)
    assert bench.scheduler.results.generated == 0 and bench.scheduler.pool.free == bench.num_blocks


def test_it_finds_no_prefix_and_offers_none() -> None:
    bench = pooling_bench(WHOLE, 200)
    for _ in range(2):
        ref = bench.submit(prompt_of(5 * BLOCK), 1)
        assert sizes(bench) == [[5 * BLOCK]] and bench.table.cached(ref) == 0


def test_where_the_last_token_is_enough_prompts_are_cut_and_share_prefixes() -> None:
    bench = pooling_bench(PARTS)
    bench.submit(prompt_of(80), 1)
    assert sizes(bench) == [[32], [32], [16]]
    ref = bench.submit(prompt_of(80), 1)
    assert sum(map(sum, sizes(bench))) <= BLOCK and bench.table.cached(ref) >= 80 - BLOCK
    assert bench.table.finish(ref) == Finish.STOP


@pytest.mark.parametrize("sampling", [WHOLE, PARTS])
@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("planned", [True, False])
def test_a_successor_computes_whole_prompts_again(sampling: Sampling, turns: int, planned: bool) -> None:
    """With the steps of the one before still in the worker's lane, or without."""
    bench = pooling_bench(sampling)
    lengths = [10, 20, 5, 60, 7, 32, 1]
    refs = {bench.submit(prompt_of(length, length), 1): length for length in lengths}
    for turn in range(turns):
        bench.plan() if turn % 2 == 0 else bench.work()
    if not planned:
        bench.planned.clear()
    bench.new_scheduler()
    bench.scheduler.check_integrity()
    steps = sizes(bench)
    if sampling is WHOLE:
        assert {count for step in steps for count in step} <= set(lengths)
    assert all(bench.table.finish(ref) == Finish.STOP for ref in refs)
    bench.scheduler.check_integrity()


def test_a_worker_that_dies_takes_nothing_along() -> None:
    bench = pooling_bench(WHOLE)
    refs = [bench.submit(prompt_of(length, length), 1) for length in (10, 20, 30)]
    bench.plan()
    bench.new_worker()
    assert sorted(count for step in sizes(bench) for count in step) == [10, 20, 30]
    assert all(bench.table.finish(ref) == Finish.STOP for ref in refs)


def test_they_share_a_server_with_nobody_who_generates_but_could() -> None:
    """A whole prompt waits for its step while others decode."""
    bench = Bench(max_num_batched_tokens=32)
    generating = bench.submit(prompt_of(4), 20, ignore_eos=True)
    bench.plan()
    bench.work()
    bench.sampling = WHOLE
    pooled = bench.submit(prompt_of(30), 1)
    sizes(bench)
    assert bench.table.finish(generating) == Finish.LENGTH and bench.table.finish(pooled) == Finish.STOP
