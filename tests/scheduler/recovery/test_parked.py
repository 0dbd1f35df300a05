"""Engines that have no workers, while the server is to sleep once what has begun has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorserve.actors.protocol.administration import Sleep, WakeUp
from actorserve.actors.runtime.in_flight import Ended

from .test_handover import Servers


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


def test_a_sleep_waits_for_no_end_that_can_come_nowhere(servers: Servers) -> None:
    """It came before what ran in a parked engine could be given to another one, which sleeps now."""
    first, second = servers.engines
    ref = servers.submit(1)
    second.compute()
    for engine in servers.engines:
        engine.turn(Sleep(7, 1, "keep"))
    second.park()
    for engine in servers.engines:
        engine.kill_worker(Ended.REPLACED)
        engine.turn(WakeUp(8, 3))
    second.turn(Sleep(9, 1, "wait"))
    assert not second.actor.administration.is_parked, "the other engine may be up soon, and take it"
    first.turn(Sleep(9, 1, "wait"))
    second.turn()
    assert all(engine.actor.administration.is_parked for engine in servers.engines) and second.refs == {ref}
    for engine in servers.engines:
        engine.turn(WakeUp(10, 3))
    first.begin_worker()
    first.meet()
    second.turn()
    servers.deliver()
    servers.check(ref)
    assert first.refs == {ref}
    before = servers.table.generated(ref)
    first.compute()
    assert servers.table.generated(ref) > before
