"""The scheduler dies, and its successor goes on with the KV that the worker has: nothing is lost, little done again."""

from __future__ import annotations

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.scheduler.recovery.takeover import MAX_TAKEOVERS, Contradiction
from actorserve.actors.scheduler.scheduler import STEPS_AHEAD

from ..engine_model import BLOCK, MAX_TOKENS, Bench, expected_answer, finish_all, prompt_of, running_bench


@pytest.mark.parametrize("turns", range(25))
def test_only_what_was_in_flight_is_computed_again(turns: int) -> None:
    bench, prompts = running_bench(turns=turns)
    confirmed = {s.ref: int(bench.scheduler.batch.num_confirmed_tokens[s.row]) for s in bench.scheduler.batch.running()}
    in_flight = sum(step.tokens for step in bench.scheduler.in_flight)
    found = bench.new_scheduler()
    assert found is not None
    assert {holding.sequence.ref: holding.computed for holding in found.holdings} == confirmed
    assert found.tokens == sum(confirmed.values())
    bench.scheduler.check_integrity()
    finish_all(bench, prompts)
    undisturbed = sum(len(prompt) + 29 for prompt in prompts.values())
    assert bench.worker.computed_tokens <= undisturbed + in_flight


def test_steps_that_the_worker_never_got_are_not_missed() -> None:
    bench, prompts = running_bench()
    before = bench.worker.computed_tokens
    bench.planned.clear()
    assert bench.new_scheduler()
    finish_all(bench, prompts)
    assert bench.worker.computed_tokens == sum(len(prompt) + 29 for prompt in prompts.values()) > before


def test_the_prefix_cache_is_taken_over() -> None:
    bench = Bench()
    prompt = prompt_of(5 * BLOCK + 1)
    bench.submit(prompt, 3, ignore_eos=True)
    bench.run()
    found = bench.new_scheduler()
    assert found is not None and len(found.cached) == 5 and not found.holdings
    bench.scheduler.check_integrity()
    again = bench.submit(prompt, 3, ignore_eos=True)
    bench.run()
    assert bench.table.cached(again) == 5 * BLOCK


def test_shared_blocks_have_all_their_holders_again() -> None:
    bench = Bench()
    shared = prompt_of(5 * BLOCK)
    bench.submit([*shared, 0], 1)
    bench.run()
    refs = [bench.submit([*shared, n], 20, ignore_eos=True) for n in range(1, 4)]
    while bench.plan():
        pass
    bench.work()
    assert bench.new_scheduler()
    bench.scheduler.end(refs[0], Finish.ABORT)
    bench.scheduler.check_integrity()
    assert bench.scheduler.pool.free == bench.num_blocks - 5 - 2, "five are shared, and each has one"
    bench.run()
    assert [bench.answer(ref) for ref in refs[1:]] == [
        expected_answer([*shared, n], 20, ignore_eos=True) for n in (2, 3)
    ]


def test_another_worker_has_nothing() -> None:
    bench, prompts = running_bench()
    bench.lose_worker()
    bench.birth()
    assert bench.meet_worker() is None
    assert bench.kv.holders() == [] and bench.kv.cached() == {} and bench.kv.describes(bench.workers, bench.num_blocks)
    finish_all(bench, prompts)


def test_a_failed_step_leaves_nothing_to_take_over() -> None:
    bench, _ = running_bench()
    bench.scheduler.fail_step()
    bench.new_epoch()
    assert bench.kv.holders() == [] and bench.kv.cached() == {}


def test_a_map_with_which_schedulers_die_is_given_up() -> None:
    """Else they would die on and on, if something in it is what they die of."""
    bench, prompts = running_bench()
    for _ in range(MAX_TAKEOVERS):
        assert bench.new_scheduler()
    bench.birth()
    with pytest.raises(Contradiction):
        bench.meet_worker()
    bench.new_epoch()
    assert bench.new_scheduler(), "a new map is taken over again"
    finish_all(bench, prompts)


def test_a_map_with_which_steps_come_back_is_kept() -> None:
    bench, prompts = running_bench()
    for _ in range(3 * MAX_TAKEOVERS):
        assert bench.new_scheduler()
        bench.plan()
        while bench.work():
            pass
    finish_all(bench, prompts)


def test_those_that_wait_keep_their_order() -> None:
    bench = Bench(max_num_seqs=1)
    first, second = (bench.submit(prompt_of(20, n), 5, ignore_eos=True) for n in range(2))
    assert first > second, "slots are given out from the last one on"
    bench.new_scheduler()
    while not bench.table.finish(second):
        bench.plan()
        bench.work()
    assert bench.table.finish(first)


def test_ends_that_come_between_birth_and_the_worker() -> None:
    """They are known before the worker answers: a cancelled sequence's blocks are free."""
    bench, prompts = running_bench()
    gone = next(iter(prompts))
    bench.birth()
    bench.table.cancel(gone)
    bench.scheduler.end(gone, Finish.ABORT)
    bench.scheduler.check_integrity()
    found = bench.meet_worker()
    assert found is not None and found.ended == [gone] and len(found.holdings) == 3
    bench.scheduler.check_integrity()
    del prompts[gone]
    finish_all(bench, prompts)


def test_an_adopted_row_may_end_before_its_first_step() -> None:
    bench, prompts = running_bench(max_num_seqs=4)
    waiting = {bench.submit(p := prompt_of(30, 90 + n), 30, ignore_eos=True): p for n in range(2)}
    assert bench.new_scheduler()
    for gone in list(prompts)[:2]:
        bench.table.cancel(gone)
        bench.scheduler.end(gone, Finish.ABORT)
        del prompts[gone]
    finish_all(bench, prompts | waiting)


def test_rows_are_told_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their block tables are too long for one message."""
    bench, prompts = running_bench(8)
    assert bench.new_scheduler()
    size = max(one.new_row(0, 0).size for one in bench.scheduler.batch.running())
    monkeypatch.setattr("actorserve.actors.scheduler.planned_step.MOST_NEW_BYTES", size + 1)
    told = []
    while any(bench.scheduler.batch.ticket[~bench.scheduler.batch.is_announced]):
        while bench.plan():
            told.append(len(bench.planned[-1].new_rows))
        bench.work()
    assert sum(told) == 8 and max(told) <= 2
    finish_all(bench, prompts)


def test_a_row_that_started_again_before_it_was_told_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, prompts = running_bench(8)
    assert bench.new_scheduler()
    scheduler = bench.scheduler
    size = max(one.new_row(0, 0).size for one in scheduler.batch.running())
    monkeypatch.setattr("actorserve.actors.scheduler.planned_step.MOST_NEW_BYTES", size + 1)
    scheduler.planner.memory.preempt(max(scheduler.batch.running(), key=lambda sequence: sequence.row or 0))
    told: list[int] = []
    while scheduler.waiting or any(scheduler.batch.ticket[~scheduler.batch.is_announced]):
        while bench.plan():
            told += [new.ref for new in bench.planned[-1].new_rows]
        bench.work()
    assert sorted(told) == sorted(prompts)
    finish_all(bench, prompts)


def test_a_preempted_sequence_is_told_its_cached_tokens_once() -> None:
    """One that was taken over in its prompt does not count its own blocks as found."""
    bench = Bench(num_blocks=MAX_TOKENS // BLOCK, max_num_batched_tokens=16)
    ref = bench.submit(prompt_of(100), 5, ignore_eos=True)
    for _ in range(3):
        bench.plan()
        bench.work()
    assert bench.new_scheduler()
    bench.scheduler.planner.memory.preempt(bench.scheduler.sequences[ref])
    bench.run()
    assert bench.table.cached(ref) == 0


def test_two_steps_are_in_flight() -> None:
    """What the other tests rely on."""
    bench, _ = running_bench()
    assert len(bench.planned) == STEPS_AHEAD == 2
