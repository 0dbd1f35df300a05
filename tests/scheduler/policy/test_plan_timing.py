"""Plans wait where that lets more requests into a step, and never where the worker would wait for them."""

from __future__ import annotations

import pytest

from actorserve.actors.scheduler.policy.plan_timing import EARLY, GATHER, GATHER_ALL, GATHERING_S, SHORT_S, PlanTiming

from ..engine_model import Bench, prompt_of

LONG_S = 0.1
PROMPT_S = 0.001


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Scene:
    """A bench whose steps took `step_s` so far, and a token of a prompt PROMPT_S."""

    def __init__(self, step_s: float) -> None:
        self.bench = Bench(max_num_batched_tokens=512, num_blocks=64)
        self.clock = Clock()
        self.timing = PlanTiming(self.bench.scheduler, self.clock)
        pace = self.bench.scheduler.chunk_size
        for _ in range(20):
            pace.observe(4, 0, step_s)
        pace.observe(0, 100, step_s + 100 * PROMPT_S)

    def submit(self, length: int = 40) -> None:
        self.bench.submit(prompt_of(length, self.bench.opened), 20, ignore_eos=True)

    def plan(self) -> list[int]:
        """What an actor does in a turn: the tokens of the steps that were planned."""
        found = []
        while not self.timing.hold_s() and self.bench.plan():
            found.append(self.bench.scheduler.in_flight[-1].tokens)
        return found


def test_where_steps_are_short_all_is_planned_at_once() -> None:
    scene = Scene(SHORT_S / 10)
    scene.submit(8)
    assert scene.plan() == [8, 1]


def test_nothing_is_known_yet() -> None:
    bench = Bench(max_num_batched_tokens=512)
    timing = PlanTiming(bench.scheduler)
    assert timing.hold_s() == 0
    bench.submit(prompt_of(20), 20, ignore_eos=True)
    while not timing.hold_s() and bench.plan():
        pass
    assert len(bench.planned) == 2


def test_the_next_step_is_planned_when_most_of_a_long_one_is_over() -> None:
    scene = Scene(SHORT_S / 10)
    scene.submit(100)
    assert scene.plan() == [100]
    assert scene.timing.hold_s() == pytest.approx(EARLY * (100 * PROMPT_S + SHORT_S / 10))
    scene.clock.now += 0.5 * 100 * PROMPT_S
    scene.submit()
    assert scene.plan() == []
    scene.clock.now += 0.3 * 100 * PROMPT_S
    assert scene.plan() == [41], "who came meanwhile is part of it"
    assert scene.timing.hold_s() == 0 and not scene.bench.plan(), "two are under way"


def test_a_step_that_ends_earlier_is_followed_at_once() -> None:
    scene = Scene(LONG_S)
    scene.submit()
    scene.clock.now += scene.timing.hold_s()
    for expected in ([40], [1], [1]):
        assert scene.plan() == expected
        assert scene.plan() == [] and scene.timing.hold_s() > 0
        scene.clock.now += 0.001
        scene.bench.work()


def test_the_time_of_a_step_that_waited_counts_from_the_end_of_the_one_before() -> None:
    scene = Scene(LONG_S)
    scene.submit()
    scene.clock.now += scene.timing.hold_s()
    scene.plan()
    scene.clock.now += 2 * LONG_S
    assert scene.plan() == [1]
    scene.clock.now += 1.0
    scene.bench.work()
    assert scene.timing.hold_s() == pytest.approx(EARLY * scene.bench.scheduler.chunk_size.expected(1, 0))


def test_who_comes_at_once_shares_a_first_step() -> None:
    scene = Scene(LONG_S)
    for _ in range(5):
        scene.submit()
        assert scene.plan() == []
        scene.clock.now += 0.8 * GATHER * LONG_S
    assert scene.timing.hold_s() == pytest.approx(0.2 * GATHER * LONG_S)
    scene.clock.now += 0.21 * GATHER * LONG_S
    assert scene.plan() == [200]


def test_nobody_waits_for_others_where_steps_are_not_that_long() -> None:
    scene = Scene(0.9 * GATHERING_S)
    scene.submit()
    assert scene.timing.hold_s() == 0 and scene.plan() == [40]


def test_gathering_ends() -> None:
    scene = Scene(LONG_S)
    began, count = scene.clock.now, 0
    while True:
        scene.submit()
        count += 1
        if planned := scene.plan():
            break
        scene.clock.now += 0.9 * GATHER * LONG_S
    assert 10 <= count < 14 and planned[0] == 40 * 8, "as many as there are rows"
    assert scene.clock.now - began < 1.1 * GATHER_ALL * LONG_S


def test_nobody_waits_for_others_while_rows_decode_or_when_there_is_none() -> None:
    scene = Scene(LONG_S)
    assert scene.timing.hold_s() == 0 and not scene.bench.plan()
    scene.submit()
    scene.clock.now += scene.timing.hold_s()
    scene.plan()
    scene.bench.work()
    scene.submit()
    assert scene.timing.hold_s() == 0 and scene.plan() == [41]


def test_a_new_epoch_forgets_the_step_that_ran() -> None:
    scene = Scene(LONG_S)
    scene.submit()
    scene.clock.now += scene.timing.hold_s()
    scene.plan()
    scene.bench.new_worker()
    assert scene.timing.hold_s() <= GATHER * LONG_S
    scene.clock.now += GATHER * LONG_S
    assert scene.plan() == [40]
