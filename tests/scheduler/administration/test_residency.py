"""--models-max: which model is loaded, and who leaves for another, by the words of all."""

from __future__ import annotations

import pytest

from actorserve.actors.protocol.messages import Cancel
from actorserve.actors.protocol.topics.administration import (
    Mode,
    Parked,
    Sleep,
    SleepChanged,
    WakeUp,
)
from actorserve.shm.end_lock import EndLock
from actorserve.shm.kv_map.layout import WANTED_AT
from actorserve.shm.kv_map.sleep import Part, SleepState

from .three_models import ASLEEP, AWAKE, DRAINS, WAKES, Models, cancel


def test_one_that_idles_leaves_at_once_and_its_place_is_free_once_its_worker_has_given_all_back(models: Models) -> None:
    first, second, _ = models.engines
    assert models.states() == [AWAKE, ASLEEP, ASLEEP]
    ref = models.submit(1)
    assert models.states() == [AWAKE, ASLEEP, ASLEEP]
    first.turn()
    second.turn()
    assert models.states() == [ASLEEP, ASLEEP, ASLEEP]
    first.turn(Parked(0, 1))
    second.turn()
    assert models.states() == [ASLEEP, WAKES, ASLEEP]
    second.meet()
    assert models.states() == [ASLEEP, AWAKE, ASLEEP] and second.steps and second.refs == {ref}


def test_what_has_begun_ends_first_and_what_comes_meanwhile_waits_for_its_turn(models: Models) -> None:
    first, second, _ = models.engines
    begun = models.submit(0)
    first.compute(2)
    models.submit(1)
    first.turn()
    assert models.states()[0] == DRAINS
    behind = models.submit(0)
    first.compute(2)
    assert models.states()[0] == DRAINS
    cancel(models, first, begun)
    first.turn(Parked(0, 1))
    assert models.states()[0] == ASLEEP and first.refs == {behind}
    second.turn()
    second.meet()
    second.turn()
    assert models.states() == [ASLEEP, DRAINS, ASLEEP], "the first is wanted again; the second has begun"
    assert second.steps


def test_who_has_waited_longest_comes_first(models: Models) -> None:
    first, second, third = models.engines
    models.submit(2)
    models.submit(1)
    first.turn()
    first.turn(Parked(0, 1))
    second.turn()
    assert models.states() == [ASLEEP, ASLEEP, ASLEEP]
    third.turn()
    second.turn()
    assert models.states() == [ASLEEP, ASLEEP, WAKES]


@pytest.mark.parametrize("dies", [False, True])
def test_whose_request_is_gone_is_waited_for_by_nobody(models: Models, dies: bool) -> None:
    first, second, _ = models.engines
    ref = models.submit(1)
    models.table.cancel(ref)
    if dies:
        second.start()
        second.turn(Parked(0, 1))
    else:
        second.turn(Cancel([ref]))
    second.turn()
    first.turn()
    assert models.states() == [AWAKE, ASLEEP, ASLEEP]


@pytest.mark.parametrize("dies", [False, True])
def test_one_that_was_to_leave_goes_on_where_the_other_is_not_asked_for_any_more(models: Models, dies: bool) -> None:
    first, second, _ = models.engines
    models.submit(0)
    first.compute(2)
    ref = models.submit(1)
    first.turn()
    assert models.states()[0] == DRAINS
    behind = models.submit(0)
    models.table.cancel(ref)
    second.turn(Cancel([ref]))
    second.turn()
    if dies:
        first.start()
        first.meet()
    first.turn()
    assert models.states()[0] == AWAKE
    assert behind in first.refs
    first.compute(4)
    assert not len(first.actor.scheduler.waiting), "what came meanwhile is computed"


def test_one_that_an_operator_unloads_leaves_also_where_no_other_is_asked_for(models: Models) -> None:
    first, *_ = models.engines
    models.submit(0)
    first.compute(2)
    first.turn(Sleep(5, 1, "wait", idle=True))
    first.turn()
    assert models.states()[0] == DRAINS


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_who_slept_by_itself_before_an_operators_sleep_does_again_when_that_ends(models: Models, mode: Mode) -> None:
    """So no more are loaded than may be; one that is asked for meanwhile comes then, and one by its name at once."""
    first, second, third = models.engines
    for number, engine in enumerate(models.engines):
        engine.turn(Sleep(number, 2, mode))
    operators = SleepState(2, Part.ALL)
    assert models.states() == [operators, *[operators._replace(unasked=True)] * 2]
    first.turn(Parked(0, 2))
    second.turn(Sleep(4, 1, mode), Parked(0, 1))
    ref = models.submit(1)
    third.turn(WakeUp(5, int(Part.WEIGHTS)))
    third.turn(WakeUp(6, int(Part.KV)))
    assert {SleepChanged(5), SleepChanged(6)} <= set(models.lanes["frontend-0"]) and models.states()[2] == ASLEEP
    third.turn(Parked(0, 1))
    second.turn()
    assert models.states()[1] == SleepState(1, Part.ALL, unasked=True), "an operator's sleep waits for nobody"
    first.turn(WakeUp(7, int(Part.ALL)))
    first.turn()
    first.meet()
    assert models.states()[0] == AWAKE
    second.turn(WakeUp(8, int(Part.ALL), loads=True))
    first.turn()
    first.turn(Parked(0, 1))
    second.turn()
    second.meet()
    assert models.states() == [ASLEEP, AWAKE, ASLEEP] and second.refs == {ref}


def test_a_wake_up_that_comes_twice_loads_no_model_that_nobody_asked_for(models: Models) -> None:
    first, second, _ = models.engines
    second.turn(Sleep(5, 1, "abort"), Parked(0, 1))
    for call in (6, 6, 7):
        models.lanes["frontend-0"].clear()
        second.turn(WakeUp(call, int(Part.ALL)))
        assert models.lanes["frontend-0"] == [SleepChanged(call)]
        first.turn()
        assert models.states() == [AWAKE, ASLEEP, ASLEEP]


def test_a_successor_of_one_that_waits_finds_that(models: Models) -> None:
    first, second, _ = models.engines
    ref = models.submit(1)
    second.start()
    first.turn()
    first.turn(Parked(0, 1))
    second.turn(Parked(0, 1))
    second.turn()
    assert models.states() == [ASLEEP, WAKES, ASLEEP] and second.refs == {ref}


def test_a_place_is_found_by_one_alone(models: Models) -> None:
    """Who looks holds a lock."""
    first, second, _ = models.engines
    models.submit(1)
    first.turn()
    first.turn(Parked(0, 1))
    lock = EndLock(second.context.segment, models.system.kv_map_offsets[0] + WANTED_AT * 8, "it")
    second.turn()
    assert models.states() == [ASLEEP, ASLEEP, ASLEEP]
    lock.close()
    second.turn()
    assert models.states() == [ASLEEP, WAKES, ASLEEP]


def test_an_operators_load_waits_for_a_place_too_and_is_answered_when_it_computes(models: Models) -> None:
    first, _, third = models.engines
    third.turn(WakeUp(5, int(Part.ALL), loads=True))
    first.turn()
    first.turn(Parked(0, 1))
    assert models.states() == [ASLEEP, ASLEEP, ASLEEP] and not models.lanes["frontend-0"]
    third.turn()
    assert models.states() == [ASLEEP, ASLEEP, WAKES]
    third.meet()
    assert models.lanes["frontend-0"] == [SleepChanged(5, "")]


def test_one_that_an_operator_lets_sleep_wants_no_place(models: Models) -> None:
    first, second, _ = models.engines
    models.submit(1)
    second.turn(Sleep(6, 1, "keep"))
    second.turn()
    first.turn()
    assert models.states()[0] == AWAKE
