"""--models-max: which model is loaded, and who leaves for another, by the words of all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from actorserve.actors.frontend.administration.sleep import load_problem
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.kinds import KINDS
from actorserve.actors.protocol.messages import Cancel, Finish, Message
from actorserve.actors.protocol.topics.adapters import AdapterChanged, AdapterRead, LoadAdapter, ReadAdapter
from actorserve.actors.protocol.topics.administration import (
    CallMethod,
    CallWorkers,
    MethodCalled,
    Mode,
    Parked,
    Sleep,
    SleepChanged,
    Unloadable,
    WakeUp,
    WorkersCalled,
)
from actorserve.actors.protocol.topology import System
from actorserve.actors.scheduler.administration.loading import MOST_DEATHS, PROBLEM, REST_S
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.shm.end_lock import EndLock
from actorserve.shm.kv_map.layout import WANTED_AT
from actorserve.shm.kv_map.sleep import UNTIL_ASKED, Part, SleepState
from tests.scheduler.recovery.two_engines import Engine, Servers

ASLEEP, DRAINS = UNTIL_ASKED._replace(asleep=Part.ALL), UNTIL_ASKED._replace(draining=True)
WAKES, AWAKE = SleepState(idle=True), SleepState()


class Models(Servers):
    """Three, of which one is loaded at a time: the first."""

    def __init__(self, **more: Any) -> None:
        given = {"max_num_seqs": 4, "max_model_len": 256, "max_num_queued_reqs": 8, "models_max": 1, **more}
        config = make_config({**given, "also": ["org/second", "org/third"], "debug": True})
        self.blocks = 64
        info = resolve_model(config)
        self.system = System(config, info, [info, info])
        self.memory = Memory(self.system)
        workers = [self.system.group_of(KINDS["worker"], engine) for engine in self.system.engines]
        self.lanes = {name: [] for name in (*self.system.schedulers, *workers, "frontend-0")}
        self.engines = [Engine(self, number) for number in self.system.engines]
        self.engines[0].meet()
        for engine in self.engines[1:]:
            engine.turn(Parked(0, 1))
        self.table = self.engines[0].context.table
        self._next = 0

    def told(self, engine: int, kind: type[Message]) -> list[Any]:
        """What of this kind an engine's workers were sent."""
        lane = self.lanes[self.system.group_of(KINDS["worker"], engine)]
        return [message for message in lane if isinstance(message, kind)]

    def states(self) -> list[SleepState]:
        return [engine.actor.scheduler.sleep.state for engine in self.engines]


@pytest.fixture
def models() -> Iterator[Models]:
    made = Models()
    yield made
    made.close()


@pytest.fixture
def adapted() -> Iterator[Models]:
    made = Models(enable_lora=True)
    yield made
    made.close()


def cancel(models: Models, engine: Engine, ref: int) -> None:
    models.table.cancel(ref)
    engine.turn(Cancel([ref]))


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
    third.turn(WakeUp(5, int(Part.ALL)))
    first.turn()
    first.turn(Parked(0, 1))
    assert models.states() == [ASLEEP, ASLEEP, ASLEEP] and not models.lanes["frontend-0"]
    third.turn()
    assert models.states() == [ASLEEP, ASLEEP, WAKES]
    third.meet()
    assert models.lanes["frontend-0"] == [SleepChanged(5, "")]


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


def test_one_that_an_operator_lets_sleep_wants_no_place(models: Models) -> None:
    first, second, _ = models.engines
    models.submit(1)
    second.turn(Sleep(6, 1, "keep"))
    second.turn()
    first.turn()
    assert models.states()[0] == AWAKE


def test_one_that_cannot_be_loaded_ends_what_it_was_to_be_loaded_for_and_its_place_is_free(models: Models) -> None:
    first, second, third = models.engines
    ref = models.submit(1)
    first.turn()
    first.turn(Parked(0, 1))
    second.turn(WakeUp(7, int(Part.ALL)))
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
    second.turn(WakeUp(7, int(Part.ALL)))
    assert SleepChanged(7, PROBLEM) in models.lanes["frontend-0"] and models.states()[1] == ASLEEP
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + REST_S + 1)
    later = models.submit(1)
    third.meet()
    assert models.table.finish(later) == Finish.NONE and second.refs == {later}


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
