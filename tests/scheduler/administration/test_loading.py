"""Models that cannot be loaded, or kill who loads them, and what waits for one beside requests: calls, adapters."""

from __future__ import annotations

import time

import pytest

from actorserve.actors.frontend.administration.sleep import load_problem
from actorserve.actors.protocol.messages import Cancel, Finish
from actorserve.actors.protocol.topics.adapters import AdapterChanged, AdapterRead, LoadAdapter, ReadAdapter
from actorserve.actors.protocol.topics.administration import (
    CallMethod,
    CallWorkers,
    MethodCalled,
    Parked,
    Sleep,
    SleepChanged,
    Unloadable,
    WakeUp,
    WorkersCalled,
)
from actorserve.actors.scheduler.administration.loading import MOST_DEATHS, PROBLEM, REST_S
from actorserve.shm.kv_map.sleep import Part, SleepState

from .three_models import ASLEEP, AWAKE, DRAINS, WAKES, Models, cancel


def test_a_call_of_workers_waits_for_a_place_too(models: Models) -> None:
    first, second, _ = models.engines
    second.turn(CallWorkers(9, "what", b"{}"))
    first.turn()
    assert models.states()[0] == ASLEEP and not models.told(1, CallMethod), (
        "who is parked has no model to call a method of"
    )
    first.turn(Parked(0, 1))
    second.turn()
    assert models.states()[1] == WAKES and not models.told(1, CallMethod)
    second.meet()
    assert [call.call for call in models.told(1, CallMethod)] == [9]
    second.turn(MethodCalled(9, 0, b"1"))
    assert WorkersCalled(9, [b"1"], "") in models.lanes["frontend-0"]


def test_a_call_of_a_model_that_cannot_be_loaded_is_told_why(models: Models) -> None:
    first, second, _ = models.engines
    second.turn(CallWorkers(9, "what", b"{}"))
    first.turn()
    first.turn(Parked(0, 1))
    second.turn()
    second.turn(Unloadable(0, "it is broken"))
    assert WorkersCalled(9, [], "it is broken") in models.lanes["frontend-0"]
    second.turn(Unloadable(0, "it is broken"), Parked(0, 1))
    assert models.states()[1] == ASLEEP, "nobody asks it any more"


def test_an_adapter_that_is_to_be_read_waits_for_a_place_and_keeps_it(adapted: Models) -> None:
    first, second, _ = adapted.engines
    ref = adapted.submit(1)
    first.turn()
    first.turn(Parked(0, 1))
    second.turn()
    second.meet()
    first.turn(LoadAdapter(9, "an adapter", "/adapters/one"))
    second.turn()
    assert adapted.states()[1] == DRAINS
    cancel(adapted, second, ref)
    second.turn(Parked(0, 1))
    first.turn()
    assert adapted.states()[0] == WAKES
    parked = adapted.told(0, ReadAdapter)  # who passes it over
    first.kill_worker()
    first.meet()
    (read,) = adapted.told(0, ReadAdapter)[len(parked) :]
    assert read.path == "/adapters/one"
    first.turn(AdapterRead(first.actor.worker.incarnation, 0, read.adapter))
    assert AdapterChanged in map(type, adapted.lanes["frontend-0"])


def test_an_adapter_of_a_model_that_cannot_be_loaded_is_told_why(adapted: Models) -> None:
    first, *_ = adapted.engines
    first.kill_worker()
    first.turn(LoadAdapter(9, "an adapter", "/adapters/one"), Unloadable(0, "it is broken"))
    (told,) = (one for one in adapted.lanes["frontend-0"] if isinstance(one, AdapterChanged))
    assert told.problem == "it is broken"
    first.turn(Unloadable(0, "it is broken"), Parked(0, 1))
    assert adapted.states()[0] == ASLEEP, "nobody asks it any more"


def test_one_that_cannot_be_loaded_ends_what_it_was_to_be_loaded_for_and_its_place_is_free(models: Models) -> None:
    first, second, third = models.engines
    ref = models.submit(1)
    first.turn()
    first.turn(Parked(0, 1))
    second.turn(WakeUp(7, int(Part.ALL), loads=True))
    assert models.states() == [ASLEEP, WAKES, ASLEEP]
    waits = models.submit(2)
    failed = Unloadable(0, "it is broken")
    second.turn(failed)
    assert models.states()[1] == ASLEEP and not second.refs and models.table.finish(ref) == Finish.UNLOADABLE
    assert SleepChanged(7, "it is broken") in models.lanes["frontend-0"]
    third.turn()
    assert models.states()[2] == ASLEEP, "the worker has not given back what it had read"
    second.turn(failed, Parked(0, 1))
    third.turn()
    assert models.states() == [ASLEEP, ASLEEP, WAKES] and third.refs == {waits}
    third.meet()
    again = models.submit(1)
    assert models.table.finish(again) == Finish.NONE and second.refs == {again}


@pytest.mark.parametrize("sleeps", [False, True])
def test_one_that_cannot_be_loaded_anew_behind_its_workers_death_sleeps_until_it_is_asked_for(
    models: Models, sleeps: bool
) -> None:
    """Or until an operator wakes it, who has let it sleep once what has begun has ended."""
    first, second, _ = models.engines
    ref = models.submit(0)
    first.compute(2)
    if sleeps:
        first.turn(Sleep(5, 1, "wait"))
    first.kill_worker()
    first.turn(Unloadable(0, "it is broken"))
    assert models.table.finish(ref) == Finish.UNLOADABLE and not first.refs
    assert models.states()[0] == (SleepState(1, Part.ALL) if sleeps else ASLEEP)
    assert load_problem(first.context, 0) == "it is broken"
    first.turn(Unloadable(0, "it is broken"), Parked(0, 1))
    asked = models.submit(1)
    second.turn()
    assert models.states()[1] == WAKES and second.refs == {asked}, "its place is free"
    second.meet()
    again = models.submit(0)
    if sleeps:
        assert SleepChanged(5, "it is broken") in models.lanes["frontend-0"]
        first.turn(WakeUp(6, int(Part.ALL)))
    models.table.cancel(asked)
    second.turn(Cancel([asked]))
    second.turn()
    second.turn(Parked(0, 1))
    first.turn()
    first.meet()
    assert models.states()[0] == AWAKE and first.refs == {again} and load_problem(first.context, 0) == ""


def test_one_that_kills_its_workers_sleeps_on_before_the_server_ends(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = models.engines
    ref = models.submit(1)
    first.turn()
    first.turn(Parked(0, 1))
    second.turn()
    second.kill_worker()  # the parked life, as it is to load
    for deaths in range(MOST_DEATHS):
        second.turn()
        assert models.states()[1] == WAKES and second.refs == {ref}, deaths
        second.kill_worker()
    second.turn()
    assert models.states()[1] == ASLEEP and models.table.finish(ref) == Finish.UNLOADABLE
    second.turn(Parked(0, 1))
    waits = models.submit(2)
    third.turn()
    assert models.states() == [ASLEEP, ASLEEP, WAKES] and third.refs == {waits}, "its place is free"
    again = models.submit(1)
    assert models.table.finish(again) == Finish.UNLOADABLE and not second.refs, "it is not tried for a while"
    second.turn(WakeUp(7, int(Part.ALL), loads=True))
    assert SleepChanged(7, PROBLEM) in models.lanes["frontend-0"] and models.states()[1] == ASLEEP
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + REST_S + 1)
    later = models.submit(1)
    third.meet()
    assert models.table.finish(later) == Finish.NONE and second.refs == {later}


@pytest.mark.parametrize("dies", [False, True])
def test_one_that_kills_its_workers_when_an_operator_wakes_it_sleeps_on(models: Models, dies: bool) -> None:
    """Also where its scheduler dies in between, which counts anew."""
    first, *_ = models.engines
    first.turn(Sleep(5, 1, "abort"))
    first.turn(Parked(0, 1))
    first.turn(WakeUp(6, int(Part.ALL)))
    first.turn()
    assert models.states()[0] == AWAKE
    first.kill_worker()  # the parked life, as it is to load
    first.kill_worker()
    first.turn()
    if dies:
        first.start()
        first.turn(WakeUp(6, int(Part.ALL)))
    for deaths in range(MOST_DEATHS - 1 + dies):
        assert models.states()[0] == AWAKE, deaths
        first.kill_worker()
        first.turn()
    assert models.states()[0] == ASLEEP and load_problem(first.context, 0) == PROBLEM
    first.turn(Parked(0, 1))
    assert SleepChanged(6, PROBLEM) in models.lanes["frontend-0"]


def test_deaths_at_the_servers_start_are_not_counted() -> None:
    made = Models(meets=False)
    for _ in range(MOST_DEATHS + 1):
        made.engines[0].kill_worker()
        made.engines[0].turn()
    assert made.states()[0] == AWAKE
    made.close()


@pytest.mark.parametrize("loads", [False, True])
def test_deaths_are_of_one_loading(models: Models, loads: bool) -> None:
    """Those of one before, and those of workers that have a model, are not counted."""
    first, second, _ = models.engines
    models.submit(1)
    first.turn()
    first.turn(Parked(0, 1))
    second.turn()
    for _ in range(2):
        second.kill_worker()
        second.turn()
    second.meet()
    for _ in range(MOST_DEATHS):
        second.kill_worker()
        second.turn()
        if loads:
            second.meet()
    assert models.states()[1] == (AWAKE if loads else ASLEEP)
