"""Steps of a pipeline: no stage waits for a token where other rows are there, whatever else happens."""

from __future__ import annotations

import random

import numpy as np
import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.scheduler.batch import RunningBatch
from actorserve.actors.scheduler.policy.micro_batches import TRIAL, MicroBatches
from actorserve.actors.scheduler.policy.plan_timing import EARLY, PlanTiming
from actorserve.actors.scheduler.policy.step_cost import StepCost
from actorserve.actors.scheduler.recovery.suspects import DEATHS_BEFORE_TRIAL

from ..engine_model import Bench, expected_answer, prompt_of
from ..recovery.test_suspects import die
from ..test_scheduler import run_chaos

SHORT = 4


def bench_of(
    count: int, stages: int, length: int = SHORT, step_s: float = 0.0, row_s: float = 0.001, **options: object
) -> Bench:
    """So many that are about to decode."""
    bench = Bench(stages=stages, num_blocks=200, **options)  # type: ignore[arg-type]
    took(bench, step_s, row_s)
    for number in range(count):
        bench.submit(prompt_of(length, number), 40, ignore_eos=True)
    return bench


def took(bench: Bench, step_s: float, row_s: float) -> None:
    """What steps of all sizes took lately."""
    for rows in range(1, 17):
        for _ in range(5):
            bench.scheduler.chunk_size.decoding.observe(rows, step_s + row_s * rows)


def fill(bench: Bench) -> list[set[int]]:
    """Plan what can be; the rows of all steps in flight."""
    while bench.plan():
        pass
    return [set(step.rows.tolist()) for step in bench.scheduler.in_flight]


@pytest.mark.parametrize(("count", "stages"), [(2, 2), (5, 2), (7, 3), (8, 4), (3, 4)])
def test_rows_take_turns(count: int, stages: int) -> None:
    """Each step has its share of rows, and none that a stage before the last still computes."""
    bench = bench_of(count, stages, max_num_batched_tokens=64)
    for _ in range(3 * stages):
        fill(bench)
        bench.work()
    turns: list[int] = []
    for _ in range(4 * stages):
        steps = fill(bench)
        for first in range(len(steps)):
            together = steps[first : first + stages]
            assert sum(map(len, together)) == len(set.union(*together)), "a row is in two stages at once"
        assert max(map(len, steps)) == -(-count // stages) and len(steps) >= min(count, stages)
        turns += steps[0]
        bench.work()
    rounds = [turns.count(row) for row in range(count)]
    assert max(rounds) - min(rounds) <= 1, "nobody gets more than others"


def test_rows_are_divided_where_that_is_quicker() -> None:
    """Not where a step of half the rows takes as long; both are tried while nobody knows."""
    cost, no_rows = StepCost(), np.zeros(0, np.int64)
    micro, shares = MicroBatches(2, RunningBatch(8), cost), set[int]()
    for _ in range(2 * TRIAL):
        shares.add(micro.share(6))
        micro.planned(no_rows)
    assert shares == {3, 6}
    for row_s, share in ((0.0001, 6), (0.01, 3)):
        cost.__init__()  # type: ignore[misc]
        for rows in range(1, 9):
            for _ in range(5):
                cost.observe(rows, 0.01 + row_s * rows)
        assert {micro.share(6) for _ in range(2 * TRIAL)} == {share}


def test_undivided_rows_are_planned_as_without_stages() -> None:
    bench = bench_of(6, 2, step_s=0.01, row_s=0.0001)
    for _ in range(6):
        fill(bench)
        bench.work()
    assert list(map(len, fill(bench))) == [6, 6], "one runs, the next waits behind it"
    late = bench.submit(prompt_of(60, 9), 4, ignore_eos=True)
    bench.run()
    assert bench.answer(late) == expected_answer(prompt_of(60, 9), 4, ignore_eos=True)


def test_one_alone_is_planned_ahead_by_one() -> None:
    """As without a pipeline, so that whoever comes does not wait for more."""
    bench = bench_of(1, 3)
    for _ in range(10):
        assert fill(bench) == [{0}] * 2
        bench.work()


def test_parts_of_a_prompt_follow_one_another() -> None:
    """They need no token that is drawn: each stage has one."""
    bench = bench_of(1, 2, length=100, max_num_batched_tokens=16)
    assert len(fill(bench)) == 3
    assert [step.counts.tolist() for step in bench.scheduler.in_flight] == [[16]] * 3
    bench.run()


def test_a_prompt_beside_rows_in_other_stages_is_cut() -> None:
    """A step without rows that decode is no reason to keep all others waiting for long."""
    bench = bench_of(2, 2, max_num_batched_tokens=64)
    fill(bench)
    bench.work()
    bench.scheduler.planner.chunk_size = lambda decoding: 7 if decoding else 64
    bench.submit(prompt_of(60, 5), 4, ignore_eos=True)
    bench.worker.largest_step = 0
    bench.run()
    assert bench.worker.largest_step <= 1 + 7


@pytest.mark.parametrize("seed", range(3))
def test_chaos_in_stages(seed: int) -> None:
    run_chaos(seed, stages=2 + seed % 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(3, 12), *range(100, 500)])
def test_chaos_in_stages_long(seed: int) -> None:
    run_chaos(seed, stages=2 + seed % 3)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_stage_without_a_step_is_given_one_at_once() -> None:
    """The plan behind that waits until most of the oldest step is over; so does the next one of a row alone."""
    for count, planned in ((4, 2), (1, 1)):
        bench, clock = bench_of(count, 2, row_s=0.1, max_num_batched_tokens=64), Clock()
        timing = PlanTiming(bench.scheduler, clock)
        for _ in range(2):
            fill(bench)
            while bench.work():
                pass
        while not timing.hold_s() and bench.plan():
            pass
        assert len(bench.scheduler.in_flight) == planned
        clock.now += EARLY * 0.2 + 0.001
        assert not timing.hold_s() and bench.plan()


@pytest.mark.parametrize("stage", [0, 1])
def test_who_kills_any_stage_is_given_up(stage: int) -> None:
    """The oldest step is in the last stage, the one behind it in the first."""
    rng = random.Random(stage)
    bench = Bench(stages=2, num_blocks=200)
    answers = {}
    for number in range(8):
        prompt = prompt_of(rng.randrange(1, 60), number)
        answers[bench.submit(prompt, 30)] = expected_answer(prompt, 30)
    deadly = max(answers, key=lambda ref: len(answers[ref]))
    convicted: list[int] = []
    while bench.scheduler.sequences:
        while bench.plan():
            pass
        in_flight, batch = bench.scheduler.in_flight, bench.scheduler.batch
        at = in_flight[min(1 - stage, len(in_flight) - 1)]
        alive = at.rows[batch.still(at.rows, at.tickets)].tolist()
        if any(batch.at(row).ref == deadly for row in alive):
            convicted += die(bench)
            continue
        bench.work()
    assert convicted == [deadly] and bench.table.finish(deadly) == Finish.ERROR
    assert all(bench.answer(ref) == answer for ref, answer in answers.items() if ref != deadly)
    assert DEATHS_BEFORE_TRIAL == 2 and not bench.scheduler.suspects
