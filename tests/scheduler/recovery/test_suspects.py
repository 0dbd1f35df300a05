"""A request on which workers die is found and given up; whoever only was there goes on."""

from __future__ import annotations

import random

import numpy as np
import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.scheduler.recovery.suspects import DEATHS_BEFORE_TRIAL
from tests.support.selection import slow

from ..engine_model import Bench, expected_answer, prompt_of
from ..policy.test_pictures import CUT, picture, with_pictures

REQUESTS = 12
SEEDS = pytest.mark.parametrize("seed", [*range(5), *slow(*range(5, 60))])


def die(bench: Bench) -> list[int]:
    """The worker dies at its oldest step, and another one comes."""
    bench.lose_worker()
    convicted = bench.scheduler.blame()
    bench.new_epoch()
    bench.scheduler.check_integrity()
    return convicted


def in_oldest_step(bench: Bench, ref: int) -> tuple[int, int] | None:
    """(computed, tokens to compute) of this sequence in the step that the worker runs next, if it is part of it."""
    if not bench.scheduler.in_flight:
        return None
    step, batch = bench.scheduler.in_flight[0], bench.scheduler.batch
    alive = batch.ticket[step.rows] == step.tickets
    for row, count in zip(step.rows[alive].tolist(), step.counts[alive].tolist(), strict=True):
        if batch.at(row).ref == ref:
            return int(batch.num_confirmed_tokens[row]), count
    return None


def fill(bench: Bench, rng: random.Random) -> dict[int, list[int]]:
    """Requests of all lengths, and what they will be answered."""
    answers = {}
    for number in range(REQUESTS):
        prompt, limit = prompt_of(rng.randrange(1, 120), number), rng.randrange(1, 60)
        answers[bench.submit(prompt, limit)] = expected_answer(prompt, limit)
    return answers


@pytest.mark.parametrize("kind", ["position", "decoding"])
@SEEDS
def test_the_deadly_one_is_given_up_and_all_others_are_answered(seed: int, kind: str) -> None:
    """It kills whoever computes one of its positions, or decodes one of its tokens behind that."""
    rng = random.Random(seed)
    bench = Bench(num_blocks=rng.choice([40, 64, 200]), max_num_seqs=rng.choice([2, 8]))
    answers = fill(bench, rng)
    deadly = rng.choice([ref for ref, answer in answers.items() if len(answer) > 4])
    first = bench.table.prompt_length(deadly) or 0
    position = rng.randrange(first + len(answers[deadly]) - 1) if kind == "position" else first
    deaths, convicted = 0, list[int]()
    while bench.scheduler.sequences:
        while bench.plan():
            pass
        part = in_oldest_step(bench, deadly)
        if part is not None and sum(part) > position and (kind == "position" or part[1] == 1):
            deaths += 1
            convicted += die(bench)
            continue
        bench.work()
    assert convicted == [deadly] and deaths == DEATHS_BEFORE_TRIAL + 1
    assert bench.table.finish(deadly) == Finish.ERROR
    for ref, answer in answers.items():
        if ref != deadly:
            assert bench.table.finish(ref) in (Finish.STOP, Finish.LENGTH) and bench.answer(ref) == answer
    assert bench.scheduler.pool.free == bench.num_blocks and not bench.scheduler.suspects


@SEEDS
def test_deaths_without_a_reason_convict_nobody(seed: int) -> None:
    """They come as often as actors may be started again: with many steps between them."""
    rng = random.Random(seed)
    bench = Bench(num_blocks=64)
    answers: dict[int, list[int]] = {}
    for _ in range(5):
        answers |= fill(bench, rng)
    deaths, next_death = 0, rng.randrange(60)
    steps = 0
    while bench.scheduler.sequences:
        while bench.plan():
            pass
        if steps >= next_death:
            deaths += 1
            next_death = steps + rng.randrange(50, 100)
            assert not die(bench)
        else:
            steps += bench.work()
    assert deaths >= 3
    assert all(bench.answer(ref) == answer for ref, answer in answers.items())


def test_who_is_on_trial_runs_alone_until_it_is_cleared() -> None:
    bench = Bench(num_blocks=200, max_num_batched_tokens=16)
    refs = [bench.submit(prompt_of(60, number), 10) for number in range(3)]
    for _ in range(DEATHS_BEFORE_TRIAL):
        bench.plan()
        die(bench)
    (trial,) = [ref for ref in refs if bench.scheduler.suspects.on_trial() == ref]
    while bench.scheduler.suspects.on_trial() == trial:
        assert bench.plan() and not bench.plan()
        assert in_oldest_step(bench, trial) and len(bench.scheduler.in_flight[0].rows) == 1
        bench.work()
    bench.run()
    for number, ref in enumerate(refs):
        assert bench.answer(ref) == expected_answer(prompt_of(60, number), 10)


@pytest.mark.parametrize("rows", [1, 8])
def test_room_is_made_for_who_is_on_trial(rows: int) -> None:
    """The others hold all rows or all blocks when the trial begins."""
    bench = Bench(num_blocks=34, max_num_seqs=rows)
    others = [bench.submit(prompt_of(100, number), 20) for number in range(2, 5)]
    late = bench.submit(prompt_of(200, 1), 20)
    for _ in range(6):
        bench.plan()
        bench.work()
    assert bench.scheduler.sequences[late].row is None
    for _ in range(DEATHS_BEFORE_TRIAL):
        bench.scheduler.suspects.blame({late: 210, 0: 0})
    bench.scheduler.suspects.forget(0)
    assert bench.scheduler.suspects.on_trial() == late
    bench.run()
    assert bench.answer(late) == expected_answer(prompt_of(200, 1), 20)
    assert [bench.answer(ref) for ref in others] == [expected_answer(prompt_of(100, n), 20) for n in range(2, 5)]


def test_an_abort_ends_a_trial() -> None:
    bench = Bench(num_blocks=200)
    first, second = (bench.submit(prompt_of(20, number), 10) for number in range(2))
    for _ in range(DEATHS_BEFORE_TRIAL):
        bench.plan()
        die(bench)
    while (ref := bench.scheduler.suspects.on_trial()) is not None:
        bench.scheduler.end(ref, Finish.ABORT)
    assert {bench.table.finish(first), bench.table.finish(second)} == {Finish.ABORT}
    assert not bench.plan() and np.all(bench.scheduler.batch.ticket == 0)


def test_a_picture_that_kills_before_any_of_its_tokens_is_computed_is_found() -> None:
    """Beside rows that decode it is looked at in parts, of each of which a worker may die."""
    bench, item = Bench(vision=CUT), picture(0, 200)
    text = bench.submit(prompt := prompt_of(9, 1), 60, ignore_eos=True)
    while not bench.table.generated(text):
        bench.plan()
        bench.work()
    shown, deaths = bench.submit(with_pictures(240, item), 4, [item], ignore_eos=True), 0
    while not bench.table.finish(shown):
        assert bench.plan()
        if bench.planned[0].packed_looks or in_oldest_step(bench, shown):
            die(bench)
            deaths += 1
        else:
            bench.work()
    bench.run()
    assert deaths == DEATHS_BEFORE_TRIAL + 1 and bench.table.finish(shown) == Finish.ERROR
    assert bench.answer(text) == expected_answer(prompt, 60, ignore_eos=True)
