"""/models/unload where a model has several engines: all sleep once what has begun there has ended, and all wake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorserve.actors.protocol.messages import Cancel
from actorserve.actors.protocol.topics.administration import Sleep
from actorserve.shm.kv_map.sleep import UNTIL_ASKED, Part, SleepState
from tests.scheduler.recovery.two_engines import Engine, Servers

ASLEEP = UNTIL_ASKED._replace(asleep=Part.ALL)
DRAINS = UNTIL_ASKED._replace(draining=True)
WAKES = SleepState(idle=True)


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


def unload(engine: Engine) -> Sleep:
    return Sleep(7 + engine.number, 1, "wait", idle=True)


def states(servers: Servers) -> list[SleepState]:
    return [engine.actor.scheduler.sleep.state for engine in servers.engines]


def cancel(servers: Servers, engine: Engine, ref: int) -> None:
    servers.table.cancel(ref)
    engine.turn(Cancel([ref]))


def serve_one(servers: Servers) -> None:
    """Each has had a request, which the other has not looked at."""
    for engine in servers.engines:
        cancel(servers, engine, servers.submit(engine.number))
        while engine.steps:
            engine.compute(1)


@pytest.mark.parametrize("first", [0, 1])
def test_what_was_asked_before_wakes_nobody(servers: Servers, first: int) -> None:
    serve_one(servers)
    one, other = servers.engines[first], servers.engines[1 - first]
    one.turn(unload(one))
    other.turn(unload(other))
    for engine in (one, other):
        engine.turn()
    assert states(servers) == [ASLEEP, ASLEEP]
    servers.submit(first)
    other.turn()
    assert states(servers) == [WAKES, WAKES]


def test_it_wakes_nobody_that_falls_asleep_behind_the_other(servers: Servers) -> None:
    serve_one(servers)
    one, other = servers.engines
    for engine in servers.engines:
        engine.actor.handle(unload(engine))
    one.turn()
    other.turn()
    one.turn()
    assert states(servers) == [ASLEEP, ASLEEP]


@pytest.mark.parametrize("turns_between", [False, True])
def test_what_comes_while_they_drain_waits_and_wakes_all_once_all_sleep(servers: Servers, turns_between: bool) -> None:
    """Whichever of them falls asleep first: one that woke before the other slept would keep it draining for ever."""
    one, other = servers.engines
    begun = servers.submit(0)
    one.compute(2)
    for engine in servers.engines:
        engine.turn(unload(engine))
    waiting = servers.submit(0)
    assert states(servers) == [DRAINS, DRAINS]
    servers.table.cancel(begun)
    one.actor.handle(Cancel([begun]))
    if turns_between:
        other.turn()
        assert states(servers) == [DRAINS, ASLEEP]
    one.turn()
    other.turn()
    one.turn()
    other.turn()
    assert states(servers) == [WAKES, WAKES]
    assert not any(engine.actor.scheduler.sleep.is_waited_for for engine in servers.engines), "operators are answered"
    for engine in servers.engines:
        engine.meet()
    assert states(servers) == [SleepState(), SleepState()]
    assert waiting in one.refs and one.steps and not servers.lanes[other.name]


def test_one_that_is_told_once_the_other_wakes_is_awake_again(servers: Servers) -> None:
    """Both sleep; what comes is seen by one before it is told to sleep again, and by the other behind that."""
    one, other = servers.engines
    for engine in (one, other, one):
        engine.turn(unload(engine))
    assert states(servers) == [ASLEEP, ASLEEP]
    one.turn(Sleep(17, 1, "wait", idle=True))
    servers.submit(1)
    one.turn()
    assert states(servers) == [WAKES, WAKES]
    other.turn(Sleep(18, 1, "wait", idle=True))
    assert states(servers) == [WAKES, WAKES]
