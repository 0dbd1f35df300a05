"""An engine that falls asleep by itself: what keeps it awake, and what wakes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.messages import Admit, Cancel
from actorserve.actors.protocol.step import StepDone
from actorserve.actors.protocol.topics.adapters import AdapterRead, LoadAdapter
from actorserve.actors.protocol.topics.administration import CallMethod, CallWorkers, MethodCalled, Sleep, WakeUp
from actorserve.actors.scheduler.administration import idle
from actorserve.shm.kv_map.sleep import UNTIL_ASKED, Part, SleepState
from tests.scheduler.recovery.two_engines import Engine, Servers
from tests.scheduler.test_actor import READY, Life, Lives, start_of

IDLE_S = 60


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr(idle, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def new_lives(clock: SimpleNamespace) -> Iterator[Callable[..., Lives]]:
    """A function that makes one engine's, of which nothing is asked any more."""
    made: list[Lives] = []

    def make(**options: Any) -> Lives:
        lives = Lives(**{"sleep_idle_seconds": IDLE_S, **options})
        made.append(lives)
        clock.now = 100.0
        lives.now.turn()
        assert not state_of(lives.now).is_on, "a request runs"
        lives.now.context.table.cancel(lives.ref)
        lives.now.turn(Cancel([lives.ref]))
        for step in lives.now.steps[1:]:
            lives.now.turn(StepDone.make(step, [7] * len(step.rows), 0.0))
        return lives

    yield make
    for lives in made:
        lives.now.context.close()
        lives.memory.close()


def state_of(life: Life | Engine) -> SleepState:
    return life.actor.scheduler.sleep.state


def posted_by(life: Life, kind: type) -> list[Any]:
    """All of this kind that it posts from now on."""
    found: list[Any] = []
    post = life.context.post

    def noted(target: str, message: Any) -> None:
        if isinstance(message, kind):
            found.append(message)
        post(target, message)

    life.context.post = noted  # type: ignore[method-assign]
    return found


def test_it_falls_asleep_and_wakes_for_what_is_asked(clock: SimpleNamespace, new_lives: Callable[..., Lives]) -> None:
    """Also where the scheduler dies in its sleep; and it says so until it has a worker."""
    lives = new_lives()
    clock.now = 159.0
    lives.now.turn()
    assert not state_of(lives.now).is_on
    clock.now = 160.0
    lives.now.turn()
    assert state_of(lives.now) == UNTIL_ASKED._replace(asleep=Part.ALL)
    life = lives.next()
    life.turn()
    assert state_of(life).idle and state_of(life).is_on
    life.turn(Admit([lives.new(1)]))
    assert state_of(life).wakes and not life.steps
    life = lives.next()
    assert state_of(life).wakes
    life.turn(READY)
    assert start_of(life) == 0 and state_of(life) == SleepState()
    clock.now = 1000.0
    life.turn(Sleep(7, 1, "keep"))
    clock.now = 2000.0
    life.turn()
    assert state_of(life).is_on and not state_of(life).idle, "an operator's sleep is an operator's to end"


def test_a_call_of_workers_wakes_them_and_is_made_then(clock: SimpleNamespace, new_lives: Callable[..., Lives]) -> None:
    life = new_lives().now
    clock.now = 160.0
    life.turn()
    made = posted_by(life, CallMethod)
    life.turn(CallWorkers(9, "what", b"{}"), CallWorkers(11, "what", b"{}"))
    assert state_of(life).wakes and not made, "who is parked has no model to call a method of"
    life.turn(READY)
    assert [call.call for call in made] == [9, 11] and not state_of(life).idle
    clock.now = 1000.0
    life.turn()
    assert not state_of(life).is_on, "it is not answered yet"
    life.turn(MethodCalled(9, 0, b"1"), MethodCalled(11, 0, b"2"))
    assert [answer.call for answer in life.called] == [9, 11]
    clock.now += IDLE_S
    life.turn()
    assert state_of(life).is_on
    life.turn(Sleep(7, 1, "keep"), CallWorkers(13, "what", b"{}"))
    assert made[-1].call == 13, "an operator's sleep is not to be waited for"


def test_a_call_on_which_a_worker_died_keeps_nobody_awake(
    clock: SimpleNamespace, new_lives: Callable[..., Lives]
) -> None:
    """Unless it is made again: whoever is patient asks so."""
    life = new_lives().now
    life.turn(CallWorkers(9, "what", b"{}"))
    clock.now += IDLE_S
    life.turn()
    assert not state_of(life).is_on, "it is not answered yet"
    life.turn(msgspec.structs.replace(READY, incarnation=READY.incarnation + 1))
    life.turn(CallWorkers(9, "what", b"{}"))
    clock.now += IDLE_S
    life.turn()
    assert not state_of(life).is_on
    life.turn(msgspec.structs.replace(READY, incarnation=READY.incarnation + 2))
    clock.now += IDLE_S
    life.turn()
    assert state_of(life).is_on


def test_a_waking_that_is_asked_again_while_a_model_loads_is_said_once(
    clock: SimpleNamespace, new_lives: Callable[..., Lives], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    life = new_lives().now
    life.turn(Sleep(7, 1, "keep"))
    for _ in range(3):
        life.turn(WakeUp(8, int(Part.ALL)))
    assert caplog.text.count("it is woken") == 1


def test_a_call_that_waits_for_a_worker_is_made_if_an_operator_lets_the_engine_sleep(
    clock: SimpleNamespace, new_lives: Callable[..., Lives]
) -> None:
    """Whoever is parked answers that the server sleeps."""
    life = new_lives().now
    clock.now = 160.0
    life.turn()
    made = posted_by(life, CallMethod)
    life.turn(CallWorkers(9, "what", b"{}"))
    life.turn(Sleep(7, 1, "keep"))
    assert [call.call for call in made] == [9]


def test_an_adapter_that_is_loaded_wakes_it_and_keeps_it_awake(
    clock: SimpleNamespace, new_lives: Callable[..., Lives]
) -> None:
    life = new_lives(enable_lora=True).now
    clock.now = 160.0
    life.turn()
    life.turn(LoadAdapter(9, "an adapter", "/adapters/one"))
    assert state_of(life).wakes
    life.turn(READY)
    clock.now = 1000.0
    life.turn()
    assert not state_of(life).is_on, "it is still being read"
    adapters = life.actor.scheduler.adapters
    assert adapters is not None
    (adapter,) = (one.id for one in adapters.registry.all())
    life.turn(AdapterRead(READY.incarnation, 0, adapter))
    clock.now += IDLE_S
    life.turn()
    assert state_of(life).is_on


UNLOAD = Sleep(7, 1, "wait", idle=True)


def test_it_is_unloaded_once_what_has_begun_has_ended_and_wakes_for_what_is_asked(
    clock: SimpleNamespace, new_lives: Callable[..., Lives]
) -> None:
    """Where nothing lets it sleep by itself; also where the scheduler dies on the way."""
    lives = new_lives(sleep_idle_seconds=0)
    running = lives.new(1)
    lives.now.turn(Admit([running]))
    lives.now.turn(UNLOAD)
    assert state_of(lives.now) == UNTIL_ASKED._replace(draining=True), "its request goes on"
    life = lives.next()
    life.turn(READY)
    assert state_of(life).draining
    life.context.table.cancel(running)
    life.turn(Cancel([running]))
    for step in life.steps:
        life.turn(StepDone.make(step, [7] * len(step.rows), 0.0))
    assert state_of(life) == UNTIL_ASKED._replace(asleep=Part.ALL)
    life.turn(Admit([lives.new(2)]))
    assert state_of(life).wakes
    life.turn(READY)
    assert state_of(life) == SleepState()
    clock.now = 1_000_000.0
    life.turn()
    assert not state_of(life).is_on


def test_an_operators_sleep_stays_one_where_the_model_is_unloaded_meanwhile(
    clock: SimpleNamespace, new_lives: Callable[..., Lives]
) -> None:
    """While it drains, and when it sleeps: what is asked wakes nobody."""
    lives = new_lives(sleep_idle_seconds=0)
    life, running = lives.now, lives.new(1)
    life.turn(Admit([running]))
    life.turn(Sleep(5, 2, "wait", wait_s=30))
    life.turn(UNLOAD)
    wanted = SleepState(2, wait_s=30)
    assert state_of(life) == wanted._replace(draining=True)
    life.context.table.cancel(running)
    life.turn(Cancel([running]))
    for step in life.steps:
        life.turn(StepDone.make(step, [7] * len(step.rows), 0.0))
    life.turn(msgspec.structs.replace(UNLOAD, call=9), Admit([lives.new(2)]))
    assert state_of(life) == wanted._replace(asleep=Part.ALL)
    life.turn(WakeUp(11, int(Part.WEIGHTS)), msgspec.structs.replace(UNLOAD, call=13))
    assert state_of(life) == wanted._replace(asleep=Part.KV)


def test_a_call_of_workers_is_made_if_an_operator_wakes_them(
    clock: SimpleNamespace, new_lives: Callable[..., Lives]
) -> None:
    life = new_lives(sleep_idle_seconds=0).now
    life.turn(UNLOAD)
    assert state_of(life).idle and state_of(life).is_parked
    made = posted_by(life, CallMethod)
    life.actor.handle(CallWorkers(9, "what", b"{}"))
    life.turn(WakeUp(11, int(Part.ALL)))
    life.turn(READY)
    assert [call.call for call in made] == [9]


# --- several engines --------------------------------------------------------------------------------------------------


@pytest.fixture
def servers(clock: SimpleNamespace) -> Iterator[Servers]:
    made = Servers(sleep_idle_seconds=IDLE_S)
    yield made
    made.close()


def test_all_engines_of_a_model_sleep_and_wake_together(clock: SimpleNamespace, servers: Servers) -> None:
    """A request goes to one that is awake, however long its queue: nobody would ask anything of the others."""
    first, second = servers.engines
    clock.now = 50.0
    servers.submit(0)
    clock.now = 1000.0
    second.turn()
    assert not state_of(second).is_on, "the first one computes"
    first.compute(2)
    (ref,) = first.refs
    servers.table.cancel(ref)
    first.turn(Cancel([ref]))
    while first.steps:
        first.compute(1)
    for engine in servers.engines:
        engine.turn()
    clock.now += IDLE_S
    for engine in servers.engines:
        engine.turn()
        assert state_of(engine).is_on
    fd = second.context.eventfds[second.name]
    drain(fd)
    servers.submit(0)
    assert state_of(first).wakes and drain(fd), "the other one is told to look"
    second.turn()
    assert state_of(second).wakes


def test_what_came_and_went_between_two_looks_keeps_others_awake(clock: SimpleNamespace, servers: Servers) -> None:
    first, second = servers.engines
    clock.now = IDLE_S - 1.0
    ref = servers.submit(0)
    servers.table.cancel(ref)
    first.turn(Cancel([ref]))
    while first.steps:
        first.compute(1)
    second.turn()
    clock.now = IDLE_S + 1.0
    second.turn()
    assert not state_of(second).is_on
    clock.now = 2 * IDLE_S
    second.turn()
    assert state_of(second).is_on


def drain(fd: int) -> bool:
    """Was it written since the last time?"""
    try:
        return os.eventfd_read(fd) > 0
    except BlockingIOError:
        return False
