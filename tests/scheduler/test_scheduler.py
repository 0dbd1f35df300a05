"""The scheduler against a worker that checks every prefix: batching, chunks, cache, preemption, deaths."""

from __future__ import annotations

import random

import msgspec
import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.step import KVLayout
from actorserve.actors.protocol.wire import pack
from tests.support.selection import slow

from .engine_model import BLOCK, END, MAX_TOKENS, PLAIN, Bench, expected_answer, finish_all, prompt_of, running_bench


def test_one_request() -> None:
    bench = Bench()
    prompt = prompt_of(20)
    ref = bench.submit(prompt, 30)
    bench.run()
    assert bench.answer(ref) == expected_answer(prompt, 30)
    assert bench.scheduler.pool.free == bench.num_blocks
    assert ref in bench.scheduler.lifecycle.moved


def test_prompt_is_computed_in_chunks_of_the_budget() -> None:
    bench = Bench(max_num_batched_tokens=16)
    ref = bench.submit(prompt_of(100), 5, ignore_eos=True)
    bench.run()
    assert bench.answer(ref) == expected_answer(prompt_of(100), 5, ignore_eos=True)
    assert bench.worker.largest_step == 16


def test_the_next_step_is_planned_while_one_runs() -> None:
    bench = Bench()
    bench.submit(prompt_of(4), 10, ignore_eos=True)
    assert bench.plan() and bench.plan()
    assert not bench.plan(), "a third step must wait for the first to come back"


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_end_token(ignore_eos: bool) -> None:
    bench = Bench()
    prompt = next(p for s in range(1000) if END in expected_answer(p := prompt_of(9, s), 60)[2:])
    ref = bench.submit(prompt, 60, ignore_eos=ignore_eos)
    bench.run()
    assert bench.answer(ref) == expected_answer(prompt, 60, ignore_eos=ignore_eos)
    assert bench.table.finish(ref) == (Finish.LENGTH if ignore_eos else Finish.STOP)


def test_stop_token_ids() -> None:
    bench = Bench()
    prompt = prompt_of(9, 3)
    stop = expected_answer(prompt, 20, ignore_eos=True)[5]
    ref = bench.submit(prompt, 20, stop_token_ids=[stop], ignore_eos=True)
    bench.run()
    assert bench.answer(ref) == expected_answer(prompt, 20, (stop,), ignore_eos=True)
    assert bench.table.finish(ref) == Finish.STOP


def test_shared_prefix_is_computed_once() -> None:
    bench = Bench()
    shared = prompt_of(5 * BLOCK)
    first = bench.submit([*shared, 1], 3, ignore_eos=True)
    bench.run()
    before = bench.worker.computed_tokens
    second = bench.submit([*shared, 2], 3, ignore_eos=True)
    bench.run()
    assert bench.table.cached(first) == 0 and bench.table.cached(second) == 5 * BLOCK
    assert bench.worker.computed_tokens - before <= 4
    assert bench.scheduler.prefix.hits == 5 * BLOCK


def test_generated_blocks_are_cached_too() -> None:
    bench = Bench()
    prompt = prompt_of(10)
    ref = bench.submit(prompt, 40, ignore_eos=True)
    bench.run()
    again = bench.submit([*prompt, *bench.answer(ref)], 2, ignore_eos=True)
    bench.run()
    assert bench.table.cached(again) == 48  # 49 of the 50 tokens were computed, 6 blocks of them full


def test_no_prefix_caching() -> None:
    bench = Bench(prefix_caching=False)
    for _ in range(2):
        ref = bench.submit(prompt_of(30), 3)
        bench.run()
        assert bench.table.cached(ref) == 0


def test_preemption_keeps_the_text_and_the_order() -> None:
    bench = Bench(num_blocks=MAX_TOKENS // BLOCK, max_num_batched_tokens=64)
    refs = {bench.submit(prompt_of(40, s), 80, ignore_eos=True): s for s in range(8)}
    bench.run()
    assert bench.scheduler.planner.memory.preemptions > 0
    for ref, seed in refs.items():
        assert bench.answer(ref) == expected_answer(prompt_of(40, seed), 80, ignore_eos=True)


def test_cancel_frees_blocks_at_once() -> None:
    bench = Bench()
    ref = bench.submit(prompt_of(50), 50)
    bench.plan()
    bench.work()
    assert bench.scheduler.pool.free < bench.num_blocks
    bench.table.cancel(ref)
    bench.scheduler.end(ref, Finish.ABORT)
    assert bench.scheduler.pool.free == bench.num_blocks
    assert bench.table.finish(ref) == Finish.ABORT
    bench.run()


def test_cancelled_before_admission() -> None:
    bench = Bench()
    ref = bench.open(prompt_of(5), 5)
    bench.table.cancel(ref)
    bench.scheduler.admit(ref)
    assert bench.table.finish(ref) == Finish.ABORT and not bench.scheduler.sequences


def test_queue_limit_rejects() -> None:
    bench = Bench(max_num_seqs=2, max_queued=1)
    refs = [bench.submit(prompt_of(5, s), 5) for s in range(4)]
    assert [bench.table.finish(ref) for ref in refs] == [0, 0, 0, Finish.REJECTED]
    bench.run()
    assert all(bench.table.finish(ref) in (Finish.STOP, Finish.LENGTH) for ref in refs[:3])


def test_tokens_that_wait_are_limited() -> None:
    """Only where all rows are taken, and never one that would wait alone, however long it is."""
    bench = Bench(max_num_seqs=2, max_queued_tokens=20)
    refs = [bench.submit(prompt_of(12, s), 5) for s in range(2)]  # these run
    while bench.plan():
        pass
    refs += [bench.submit(prompt_of(length, s), 5) for s, length in enumerate((30, 4), 2)]
    assert [bench.table.finish(ref) for ref in refs] == [0, 0, 0, Finish.REJECTED]
    bench.run()
    assert bench.scheduler.waiting.num_prompt_tokens == 0
    assert all(bench.table.finish(ref) in (Finish.STOP, Finish.LENGTH) for ref in refs[:3])


def test_a_step_computes_so_much_of_one_prompt() -> None:
    bench = Bench(long_prefill_tokens=9)
    bench.submit(prompt_of(60), 5)
    bench.submit(prompt_of(20, 1), 5)
    while bench.plan():
        pass
    counts = [int(count) for step in bench.planned for count in step.counts]
    assert max(counts) == 9 and len(bench.planned[0].counts) == 2
    bench.run()


def test_priority_goes_first() -> None:
    bench = Bench(max_num_seqs=1, by_priority=True)
    refs = [bench.submit(prompt_of(5, s), 4, priority=p, ignore_eos=True) for s, p in enumerate((5, 9, -1))]
    ended: list[int] = []
    while bench.scheduler.sequences:
        while bench.plan():
            pass
        bench.work()
        ended += [ref for ref in refs if bench.table.finish(ref) and ref not in ended]
    assert ended == [refs[2], refs[0], refs[1]]


def test_fewer_tokens_than_rows_in_the_budget_is_fair() -> None:
    bench = Bench(max_num_batched_tokens=3)
    refs = [bench.submit(prompt_of(3, s), 30, ignore_eos=True) for s in range(8)]
    for _ in range(120):
        while bench.plan():
            pass
        bench.work()
    counts = [bench.table.generated(ref) for ref in refs]
    assert min(counts) > 0 and max(counts) - min(counts) <= 8
    bench.run()


def test_twice_admitted_is_once_admitted() -> None:
    bench = Bench()
    ref = bench.submit(prompt_of(5), 5)
    bench.scheduler.admit(ref)
    bench.run()
    bench.scheduler.admit(ref)
    assert not bench.scheduler.sequences


@pytest.mark.parametrize("guilty", [False, True])
def test_who_is_given_up_when_steps_fail(guilty: bool) -> None:
    """As long as several are in such a step nobody; then who fails alone, and whoever does not is cleared."""
    bench = Bench()
    prompts = {bench.submit(prompt := prompt_of(5, n), 40, ignore_eos=True): prompt for n in range(3)}
    ref, given_up = next(iter(prompts)), list[int]()
    for _ in range(2):
        assert bench.plan()
        assert bench.scheduler.fail_step() == []
        bench.new_worker()
    while guilty and not given_up:
        assert bench.plan()
        if bench.scheduler.in_flight[0].refs == [ref]:
            given_up = bench.scheduler.fail_step()
            bench.new_worker()
        else:
            bench.work()
    if guilty:
        assert given_up == [ref] and bench.table.finish(ref) == Finish.ERROR
        del prompts[ref]
    bench.run()
    assert not bench.scheduler.suspects
    for ref, prompt in prompts.items():
        assert bench.answer(ref) == expected_answer(prompt, 40, ignore_eos=True)


@pytest.mark.parametrize("preempted", [False, True])
def test_a_row_whose_grammar_failed_ends_without_its_token(preempted: bool) -> None:
    """Not even a scheduler that dies just then leaves what its successor would take for an end."""
    bench, prompts = running_bench()
    ref = next(iter(prompts))
    prompt = prompts.pop(ref)
    before, row = bench.answer(ref), bench.scheduler.sequences[ref].row
    assert row is not None
    if preempted:
        sequence = bench.scheduler.sequences[ref]
        bench.scheduler.batch.remove(sequence)
        bench.scheduler.planner.memory.release(sequence)
        bench.scheduler.waiting.add(sequence)
    done = bench.compute()
    bench.scheduler.apply(msgspec.structs.replace(done, packed_failed=pack([row])))
    bench.scheduler.check_integrity()
    assert bench.table.finish(ref) == Finish.GRAMMAR and bench.answer(ref) == before
    assert (
        before == expected_answer(prompt, 30, ignore_eos=True)[: len(before)] and ref in bench.scheduler.lifecycle.moved
    )
    bench.new_scheduler()
    finish_all(bench, prompts)
    assert bench.table.finish(ref) == Finish.GRAMMAR and bench.answer(ref) == before


def random_layout(rng: random.Random) -> KVLayout:
    """Of a model whose layers see windows, or which keeps states, or both."""
    tables, states = rng.choice([(0, True), (1, False), (3, False), (2, True)])
    return KVLayout(states, rng.choice([0, 1, 4, 40]) if states else 0, rng.choice([1, 5, 16, 40]), tables)


def run_chaos(seed: int, layout: KVLayout = PLAIN, stages: int = 1) -> Bench:
    """Random arrivals, cancels, steps, and deaths of worker and scheduler; every answer as if nothing had happened."""
    rng = random.Random(seed)
    bench = Bench(
        num_blocks=(MAX_TOKENS // BLOCK + rng.randrange(20)) * (1 + layout.window_tables),
        layout=layout,
        max_num_seqs=rng.choice([1, 3, 8]),
        max_num_batched_tokens=rng.choice([1, 5, 32, 200]),
        prefix_caching=rng.random() < 0.8,
        by_priority=rng.random() < 0.5,
        drafts=0 if layout.states or stages > 1 else rng.choice([0, 0, 1, 3, 8]),
        stages=stages,
    )
    shared = prompt_of(100, seed)
    expected: dict[int, list[int]] = {}
    for _ in range(150):
        action = rng.random()
        if action < 0.25 and bench.free_slots:
            prompt = shared[: rng.randrange(90)] + prompt_of(rng.randrange(1, 30), rng.randrange(10**6))
            limit, stop, eos = rng.randrange(1, 60), rng.randrange(50), rng.random() < 0.5
            ref = bench.submit(prompt, limit, stop_token_ids=[stop], ignore_eos=eos, priority=rng.randrange(3))
            expected[ref] = expected_answer(prompt, limit, (stop,), eos)
        elif action < 0.30 and bench.scheduler.sequences:
            ref = rng.choice(list(bench.scheduler.sequences))
            bench.table.cancel(ref)
            bench.scheduler.end(ref, Finish.ABORT)
        elif action < 0.32:
            bench.new_worker()
        elif action < 0.325:
            bench.scheduler.reset_prefix_cache(rng.random() < 0.5)
        elif action < 0.34:
            bench.kv.prove()  # they die faster than any do in life
            bench.new_scheduler()
        elif action < 0.6:
            bench.plan()
        else:
            bench.work()
        bench.scheduler.check_integrity()
        for ref in [ref for ref in expected if bench.table.finish(ref)]:
            bench.check_end(ref, expected.pop(ref))
    bench.run()
    for ref, answer in expected.items():
        bench.check_end(ref, answer)
    assert bench.scheduler.pool.free == bench.num_blocks
    return bench


@pytest.mark.parametrize("seed", [*range(3), *slow(*range(3, 10))])
def test_chaos(seed: int) -> None:
    run_chaos(seed)


@pytest.mark.parametrize("seed", [*range(3), *slow(*range(3, 8))])
def test_chaos_with_windows_and_states(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorserve.actors.scheduler.memory.snapshots.INTERVAL", 24)
    run_chaos(seed, random_layout(random.Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(10, 40), *range(1000, 1600)])
def test_chaos_long(seed: int) -> None:
    run_chaos(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(8, 30), *range(1000, 1600)])
def test_chaos_with_windows_and_states_long(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorserve.actors.scheduler.memory.snapshots.INTERVAL", 24)
    run_chaos(seed, random_layout(random.Random(seed)))


def test_prompts_get_as_much_of_a_step_as_the_pace_leaves() -> None:
    """Running rows decode in every step; what is kept from prompts is nobody's."""
    bench = Bench(max_num_batched_tokens=64)
    bench.submit(prompt_of(10), 40, ignore_eos=True)
    bench.plan()
    bench.work()
    late = bench.submit(prompt_of(60, 2), 5, ignore_eos=True)
    bench.scheduler.planner.chunk_size = lambda decoding: 7 if decoding else 64
    bench.worker.largest_step = 0
    while not bench.table.generated(late):
        bench.plan()
        bench.work()
    assert bench.worker.largest_step == 1 + 7
    bench.run()
    assert bench.answer(late) == expected_answer(prompt_of(60, 2), 5, ignore_eos=True)
