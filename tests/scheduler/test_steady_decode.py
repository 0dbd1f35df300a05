"""A plan that is made again is the plan that would have been made; what comes back of it is accounted for alike."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.scheduler.planned_step import PlannedStep, SteadyPlan
from actorserve.actors.scheduler.scheduler import STEPS_AHEAD
from tests.support.selection import pairwise

from .engine_model import BLOCK, MAX_TOKENS, Bench, expected_answer, prompt_of

Event = tuple[str, int]
PLAIN: dict[str, Any] = {"num_blocks": 200}


def script(seed: int) -> list[Event]:
    """What happens behind which turn: few arrivals and ends, so that the same rows decode for long."""
    rng = random.Random(seed)
    return [(rng.choice(["submit", "submit", "cancel", "reset"]), rng.randrange(10**6)) for _ in range(12)]


def play(events: list[Event], **options: Any) -> tuple[list[bytes], list[list[int]], Bench, int]:
    """(the plans, the answers, the bench at its end, how many plans were one that was there before)."""
    bench = Bench(**{**PLAIN, **options})
    plans, refs, repeated = [], [], 0
    seen: list[PlannedStep] = []
    for number, (kind, value) in enumerate(events):
        if kind == "submit":
            refs.append(bench.submit(prompt_of(5 + value % 40, value), 20 + value % 90, ignore_eos=value % 3 > 0))
        elif kind == "cancel" and bench.scheduler.sequences:
            ref = sorted(bench.scheduler.sequences)[value % len(bench.scheduler.sequences)]
            bench.table.cancel(ref)
            bench.scheduler.end(ref, Finish.ABORT)
        elif kind == "reset":
            bench.scheduler.reset_prefix_cache(value % 2 > 0)
        for _ in range(10_000 if number == len(events) - 1 else 5 + value % 40):
            while bench.plan():
                plans.append(msgspec.msgpack.encode(bench.planned[-1]))
                repeated += any(step is bench.scheduler.in_flight[-1] for step in seen[-2:])
                seen.append(bench.scheduler.in_flight[-1])
            if not bench.work():
                break
    assert not bench.scheduler.sequences
    return plans, [bench.answer(ref) for ref in refs], bench, repeated


@pytest.mark.parametrize(("seed", "drafts"), pairwise(range(6), [0, 2]))
def test_nothing_differs_but_the_work(seed: int, drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    events = script(seed)
    plans, answers, bench, repeated = play(events, drafts=drafts)
    monkeypatch.setattr(SteadyPlan, "of", lambda *_: None)
    always = play(events, drafts=drafts)
    assert plans == always[0] and answers == always[1]
    assert repeated > (len(plans) // 4 if not drafts else 0) and not always[3]
    other = always[2]
    assert (bench.scheduler.batch.progress == other.scheduler.batch.progress).all()
    assert bench.kv.cached() == other.kv.cached() and bench.kv.holders() == other.kv.holders() == []
    assert bench.scheduler.results.generated == other.scheduler.results.generated
    assert bench.scheduler.prefix.hits == other.scheduler.prefix.hits


def steady_bench(count: int = 2, **options: Any) -> tuple[Bench, list[int]]:
    """Rows that decode, one plan of which was made again and waits for the worker behind another."""
    bench = Bench(**{**PLAIN, **options})
    refs = [bench.submit(prompt_of(3, seed), 100, ignore_eos=True) for seed in range(count)]
    turns(bench, 3)
    while bench.plan():
        pass
    assert bench.scheduler.in_flight[-1].version == bench.scheduler.batch.version
    return bench, refs


def turns(bench: Bench, number: int) -> None:
    for _ in range(number):
        while bench.plan():
            pass
        bench.work()


def test_a_token_is_in_all_places_at_once() -> None:
    """The map, the log, the cursor and the stamps after a step that was planned again."""
    bench, refs = steady_bench()
    for _ in range(3):
        before = [bench.table.generated(ref) for ref in refs]
        bench.work()
        assert [bench.table.generated(ref) for ref in refs] == [count + 1 for count in before]
        for seed, ref in enumerate(refs):
            count = bench.table.generated(ref)
            assert bench.answer(ref) == expected_answer(prompt_of(3, seed), 100, ignore_eos=True)[:count]
            assert bench.kv.computed(ref) == 3 + count - 1
        bench.plan()


def test_full_blocks_are_cached_as_they_fill() -> None:
    bench, (ref,) = steady_bench(1)
    while (count := bench.table.generated(ref)) < 5 * BLOCK:
        turns(bench, 1)
        computed = 3 + bench.table.generated(ref) - 1
        assert len(bench.kv.cached()) == computed // BLOCK, f"after {count + 1} tokens"


@pytest.mark.parametrize("event", ["arrival", "end", "preemption", "reset"])
def test_another_plan_is_made_when_something_has_changed(event: str) -> None:
    bench, refs = steady_bench(max_num_seqs=4)
    bench.work()
    if event == "arrival":
        bench.submit(prompt_of(9, 9), 10)
    elif event == "end":
        bench.scheduler.end(refs[0], Finish.ABORT)
    elif event == "preemption":
        bench.scheduler.planner.memory.preempt(bench.scheduler.sequences[refs[0]])
    else:
        bench.scheduler.reset_prefix_cache()
    assert bench.plan() and bench.scheduler.in_flight[-1] is not bench.scheduler.in_flight[0]
    bench.run()
    for seed, ref in enumerate(refs[event == "end" :], event == "end"):
        assert bench.answer(ref) == expected_answer(prompt_of(3, seed), 100, ignore_eos=True)


def test_who_waits_for_a_row_changes_nothing() -> None:
    bench, refs = steady_bench(max_num_seqs=2)
    bench.work()
    waiting = bench.submit(prompt_of(9, 9), 10, ignore_eos=True)
    assert bench.plan() and bench.scheduler.in_flight[-1] is bench.scheduler.in_flight[0]
    bench.run()
    for ref, answer in [(waiting, expected_answer(prompt_of(9, 9), 10, ignore_eos=True))]:
        assert bench.answer(ref) == answer
    assert all(len(bench.answer(ref)) == 100 for ref in refs)


def test_the_length_limit_is_met_exactly() -> None:
    bench = Bench(**PLAIN)
    limits = [MAX_TOKENS - 3, 40, 41, 57]
    refs = [bench.submit(prompt_of(3, seed), limit, ignore_eos=True) for seed, limit in enumerate(limits)]
    bench.run()
    for seed, (ref, limit) in enumerate(zip(refs, limits, strict=True)):
        assert bench.answer(ref) == expected_answer(prompt_of(3, seed), limit, ignore_eos=True)


def test_a_successor_takes_over_in_the_middle() -> None:
    for number in range(1, 12):
        bench, refs = steady_bench()
        turns(bench, number)
        while bench.plan():
            pass
        assert bench.new_scheduler() is not None
        bench.run()
        for seed, ref in enumerate(refs):
            assert bench.answer(ref) == expected_answer(prompt_of(3, seed), 100, ignore_eos=True)


def joining_bench(count: int = 1) -> tuple[Bench, list[int]]:
    """Its worker tells of two brief steps at once; it has as many as it is given when no row needs a block."""
    bench, refs = steady_bench(count)
    bench.scheduler.joins = True
    for _ in range(BLOCK):
        turns(bench, 1)
        while bench.plan():
            pass
        if len(bench.scheduler.in_flight) > STEPS_AHEAD:
            break
    return bench, refs


def test_a_worker_that_tells_of_two_steps_at_once_has_a_third() -> None:
    bench, refs = joining_bench()
    assert len(bench.scheduler.in_flight) == STEPS_AHEAD + 1
    bench.work()
    bench.submit(prompt_of(9, 9), 10)
    assert not bench.plan(), "who waits is not to wait for more"
    bench.run()
    assert bench.answer(refs[0]) == expected_answer(prompt_of(3, 0), 100, ignore_eos=True)


def test_long_steps_are_two() -> None:
    bench, _ = joining_bench(5)  # steps of 1 ms for each row
    assert len(bench.scheduler.in_flight) == STEPS_AHEAD


@pytest.mark.parametrize("who", ["scheduler", "worker"])
def test_a_death_with_three_steps_under_way(who: str) -> None:
    bench, refs = joining_bench()
    bench.new_scheduler() if who == "scheduler" else bench.new_worker()
    bench.run()
    assert bench.answer(refs[0]) == expected_answer(prompt_of(3, 0), 100, ignore_eos=True)
