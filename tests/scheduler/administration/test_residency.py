"""--models-max: which model is loaded, and who leaves for another, by the words of all."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.messages import Cancel, Finish
from actorserve.actors.protocol.topics.administration import Parked, Sleep, SleepChanged, Unloadable, WakeUp
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

    def __init__(self) -> None:
        given = {"max_num_seqs": 4, "max_model_len": 256, "max_num_queued_reqs": 8, "models_max": 1}
        config = make_config({**given, "also": ["org/second", "org/third"], "debug": True})
        self.blocks = 64
        info = resolve_model(config)
        self.system = System(config, info, [info, info])
        self.memory = Memory(self.system)
        self.lanes = {name: [] for name in (*self.system.schedulers, "frontend-0")}
        self.engines = [Engine(self, number) for number in self.system.engines]
        self.engines[0].meet()
        for engine in self.engines[1:]:
            engine.turn(Parked(0, 1))
        self.table = self.engines[0].context.table
        self._next = 0

    def states(self) -> list[SleepState]:
        return [engine.actor.scheduler.sleep.state for engine in self.engines]


@pytest.fixture
def models() -> Iterator[Models]:
    made = Models()
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


@pytest.mark.parametrize("waits", [False, True])
def test_deaths_are_of_one_loading(models: Models, waits: bool) -> None:
    """Those of one before, and those of a worker that has a model, are not counted."""
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
        if waits:
            second.meet()
    assert models.states()[1] == AWAKE
