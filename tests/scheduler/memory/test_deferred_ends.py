"""Ends in a group of workers: what its members read of a slot for a step is the same, whoever reads it when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.step import Step
from actorserve.shm.table.table import slot_of

from ..engine_model import Bench, prompt_of

Read = Callable[[], list[int]]
PROMPT = 40


def member(bench: Bench, step: Step, ref: int) -> Read:
    """What one that begins this step now reads of the sequence's log."""
    known = bench.table.prompt_length(ref)
    assert known == PROMPT and step.num_rows
    return lambda: bench.table.as_numpy().tokens[slot_of(ref), :known].tolist()


def use_again(bench: Bench, ref: int) -> bool:
    """As its frontend, which waits for the finish word alone."""
    if not bench.table.finish(ref):
        return False
    bench.free_slots.append(slot_of(ref))
    assert slot_of(bench.open(prompt_of(PROMPT, 9), 5)) == slot_of(ref)
    return True


def begun(steps: int, **limits: object) -> tuple[Bench, int, Step]:
    """A prompt that is computed in parts; so many steps have come back, and the next one is under way."""
    bench = Bench(max_num_batched_tokens=16, **limits)  # type: ignore[arg-type]
    ref = bench.submit(prompt_of(PROMPT), 30, ignore_eos=True)
    for _ in range(steps):
        assert bench.plan() and bench.work()
    assert bench.plan()
    return bench, ref, bench.planned[0]


def stop(bench: Bench, ref: int, code: Finish) -> None:
    if code is Finish.ABORT:
        bench.table.cancel(ref)
    else:
        bench.table.set_stop(ref, 1)
    bench.scheduler.end(ref, code)


@pytest.mark.parametrize("code", [Finish.ABORT, Finish.STOP_STRING])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_slot_is_not_free_while_a_member_may_read_it(steps: int, code: Finish) -> None:
    """One has read it, the other stands still: meanwhile the sequence is cancelled, and its frontend wants its slot."""
    bench, ref, step = begun(steps, members=2)
    read = member(bench, step, ref)
    first = read()
    stop(bench, ref, code)
    bench.scheduler.admit(ref)  # what is said twice
    bench.scheduler.end(ref, code)
    assert not use_again(bench, ref)
    assert read() == first == prompt_of(PROMPT)
    assert bench.work()
    assert bench.table.finish(ref) == code and list(bench.scheduler.lifecycle.moved) == [ref]
    assert use_again(bench, ref) and bench.scheduler.pool.free == bench.num_blocks


def test_the_last_step_that_may_read_it_is_waited_for() -> None:
    bench, ref, _ = begun(0, members=2)
    assert bench.plan()
    stop(bench, ref, Finish.ABORT)
    assert bench.work() and not bench.table.finish(ref)
    assert bench.work() and bench.table.finish(ref)


def test_who_has_lost_its_row_may_be_read_still() -> None:
    bench, ref, _ = begun(1, members=2)
    bench.scheduler.reset_prefix_cache(recompute_running=True)
    assert bench.scheduler.sequences[ref].row is None
    stop(bench, ref, Finish.ABORT)
    assert not use_again(bench, ref)
    assert bench.work() and use_again(bench, ref)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_who_goes_to_another_engine_is_not_given_while_a_member_may_read_its_slot(steps: int) -> None:
    """It may end there at once."""
    bench, ref, _ = begun(steps, members=2)
    given: list[int] = []
    bench.scheduler.lifecycle.drop(bench.scheduler.sequences[ref], lambda: given.append(ref))
    bench.scheduler.admit(ref)  # what is said twice
    assert not bench.scheduler.sequences and not given
    assert bench.work() and given == [ref] and not bench.table.finish(ref)
    assert bench.scheduler.pool.free == bench.num_blocks


def test_an_end_whose_reason_is_not_in_the_slot_is_told_at_once() -> None:
    """An operator's: the scheduler dies before the step is back, and its successor does not go on with the request."""
    bench, ref, _ = begun(0, members=2)
    bench.scheduler.end(ref, Finish.ABORT)
    assert bench.table.finish(ref) == Finish.ABORT
    bench.birth()
    assert not bench.scheduler.sequences and bench.scheduler.lifecycle.ended == [ref]


def test_an_end_that_waits_is_none_of_an_error() -> None:
    """Schedulers have died of what is said of a sequence that has ended already."""
    bench, ref, _ = begun(0, members=2)
    stop(bench, ref, Finish.STOP_STRING)
    bench.scheduler.lifecycle.refuse(ref)
    assert not bench.table.finish(ref)
    assert bench.work() and bench.table.finish(ref) == Finish.STOP_STRING


def test_of_who_decodes_nothing_is_read_any_more() -> None:
    bench, ref, _ = begun(5, members=2)
    stop(bench, ref, Finish.ABORT)
    assert use_again(bench, ref)


def test_one_process_alone_may_read_what_comes_next() -> None:
    bench, ref, _ = begun(0)
    stop(bench, ref, Finish.ABORT)
    assert use_again(bench, ref)


@pytest.mark.parametrize("of_dead_worker", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_dead_schedulers_steps_are_waited_for(late: bool, of_dead_worker: bool) -> None:
    """Until the worker is met, which has run them then; or there is another one, which runs none of them."""
    bench, ref, step = begun(1, members=2)
    read = member(bench, step, ref)
    first = read()
    if late:
        bench.birth()
        stop(bench, ref, Finish.ABORT)
    else:
        bench.table.cancel(ref)
        bench.birth()
        bench.scheduler.admit(ref)
    fresh = bench.submit(prompt_of(PROMPT), 30)
    stop(bench, fresh, Finish.ABORT)
    assert use_again(bench, fresh), "no step has it"
    assert not use_again(bench, ref)
    assert read() == first
    if of_dead_worker:
        bench.lose_worker()
        bench.new_epoch()
    else:
        bench.compute()
        bench.meet_worker()
    assert bench.table.finish(ref) == Finish.ABORT and use_again(bench, ref)


def test_nobody_waits_for_a_worker_that_is_gone() -> None:
    bench, ref, _ = begun(0, members=2)
    stop(bench, ref, Finish.ABORT)
    assert not use_again(bench, ref)
    bench.scheduler.end_epoch(7)
    assert use_again(bench, ref)
