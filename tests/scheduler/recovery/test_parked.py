"""Engines that have no workers: parked, about to be, or asleep."""

from __future__ import annotations

import time

import pytest

from actorserve.actors.protocol.topics.administration import Sleep, WakeUp
from actorserve.actors.runtime.in_flight import Ended
from actorserve.actors.scheduler.recovery import handover
from actorserve.shm.board.board import Parked

from .two_engines import Servers


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
    assert not any(engine.actor.administration.is_parked for engine in servers.engines), "its worker is still to come"
    first.turn(Sleep(10, 1, "keep"))
    second.turn()
    assert all(engine.actor.administration.is_parked for engine in servers.engines) and second.refs == {ref}
    for engine in servers.engines:
        engine.turn(WakeUp(11, 3))
    first.begin_worker()
    first.meet()
    second.turn()
    servers.deliver()
    servers.check(ref)
    assert first.refs == {ref}
    before = servers.table.generated(ref)
    first.compute()
    assert servers.table.generated(ref) > before


def test_an_engine_that_is_to_be_parked_gives_all_away_while_its_worker_lives(servers: Servers) -> None:
    first, second = servers.engines
    refs = [servers.submit(0) for _ in range(3)]
    first.compute()
    late = first.answer(first.steps[0])
    before = {ref: servers.table.generated(ref) for ref in refs}
    first.actor.scheduler.kv.cache(servers.blocks - 1, bytes(16))
    first.park()
    first.turn()
    assert not first.refs and not first.actor.scheduler.pool.count
    assert not first.actor.scheduler.kv.cached(), "its memory is about to be given back"
    first.turn(late)
    servers.deliver()
    servers.check(*refs)
    second.compute()
    assert all(servers.table.generated(ref) > before[ref] for ref in refs)
    first.kill_worker(Ended.DIED)  # whatever is said of its end, nobody is to blame
    first.turn()
    assert not first.actor.scheduler.suspects and not first.actor.scheduler.stats.survived_worker
    late_one = servers.submit(0)  # of a renderer that has looked before
    assert not first.refs and servers.deliver()
    servers.check(late_one)
    first.park(Parked.NO)
    first.begin_worker()
    first.meet()
    servers.check(*refs, servers.submit(0))


@pytest.mark.parametrize("gone", [False, True])
def test_a_group_gives_none_away_of_whom_a_member_may_begin_a_step(gone: bool) -> None:
    """Where it goes on it may end, and its slot be used again. If the group is gone nobody begins any."""
    servers = Servers(tensor_parallel_size=2)
    try:
        first, second = servers.engines
        ref = servers.submit(0)
        late = list(map(first.answer, first.steps))
        first.park()
        first.turn()
        assert not first.refs and first.actor.scheduler.pool.count, "its worker is not let go of"
        assert servers.table.engine(ref) == 0 and not servers.deliver()
        if gone:
            first.kill_worker(Ended.REPLACED)
        first.turn(*[] if gone else late)
        assert not first.actor.scheduler.pool.count
        assert servers.deliver() == 1
        servers.check(ref)
        assert second.refs == {ref}
    finally:
        servers.close()


def test_nobody_is_let_go_of_for_whom_no_other_engine_is_there(servers: Servers) -> None:
    """It goes on computing until there is one."""
    first, second = servers.engines
    ref = servers.submit(0)
    second.kill_worker()
    first.park()
    first.compute()
    assert first.refs == {ref} and servers.table.generated(ref) > 1
    second.begin_worker()
    second.meet()
    first.turn()
    servers.deliver()
    servers.check(ref)
    assert second.refs == {ref}


@pytest.mark.parametrize("dies", [False, True])
def test_a_worker_that_was_let_go_of_and_is_wanted_again_is_met_again(servers: Servers, dies: bool) -> None:
    """By this scheduler, or its successor."""
    first = servers.engines[0]
    servers.submit(0)
    first.park()
    first.turn()
    servers.deliver()
    greeted = first.greeted
    if dies:
        first.start()
        assert first.greeted == greeted, "nobody is there who would hear it"
        first.turn()
    first.park(Parked.NO)
    first.turn()
    first.turn()
    assert first.greeted == greeted + 1
    first.meet()
    ref = servers.submit(0)
    first.compute()
    assert servers.table.generated(ref) and first.refs == {ref}


def test_a_scheduler_that_dies_as_its_engine_is_parked_has_a_successor_that_gives_away(servers: Servers) -> None:
    first, second = servers.engines
    ref = servers.submit(0)
    first.compute()
    first.park()
    first.start()
    assert first.refs == {ref}
    first.turn()
    servers.deliver()
    servers.check(ref)
    assert second.refs == {ref}


@pytest.mark.parametrize("whole", [False, True])
def test_workers_that_sleep_everywhere_blame_nobody(servers: Servers, whole: bool) -> None:
    """What runs waits for the first that is wanted again."""
    first, second = servers.engines
    ref = servers.submit(0)
    first.compute()
    asleep = (first, second)[: 1 + whole]
    for engine in asleep:
        engine.park(Parked.SLEEP)
    for engine in asleep:
        engine.kill_worker(Ended.REPLACED)
        engine.turn()
    servers.deliver()
    assert not first.actor.scheduler.suspects and (first.refs == {ref}) == whole
    if whole:
        first.park(Parked.NO)
        first.begin_worker()
        first.meet()
        before = servers.table.generated(ref)
        first.compute()
        assert servers.table.generated(ref) > before


def test_who_leaves_gives_no_more_than_others_compute_in_a_moment(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are computed here meanwhile, and go when nobody waits there."""
    first, second = servers.engines
    refs = [servers.submit(0) for _ in range(3)]
    first.compute()
    first.actor.scheduler.chunk_size.prompt_token_s = 1.0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first.park()
    for left in (2, 1, 0):
        late = first.answer(first.steps[0])
        first.turn()
        assert len(first.refs) == left and bool(first.actor.scheduler.pool.count) == (left > 0)
        before = {ref: servers.table.generated(ref) for ref in first.refs}
        first.turn(late)
        assert all(servers.table.generated(ref) == count + 1 for ref, count in before.items())
        first.steps = first.steps[1:]
        second.actor.handle(servers.lanes["scheduler@1"].pop())
        second.actor.gauges.write()
        now += handover.PARTS_S
        waits = len(second.actor.scheduler.waiting)
        first.turn()
        assert waits == 1 and len(first.refs) == left, "it is not computed there yet"
        second.turn()
        second.compute(1)
        second.actor.gauges.write()
        now += handover.PARTS_S
    servers.check(*refs)
    assert second.refs == set(refs)


def test_who_leaves_and_finds_no_room_goes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(blocks=16, rows=1)
    try:
        first, second = servers.engines
        mine, _ = servers.submit(0), servers.submit(1)
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now)
        first.park()
        first.turn()
        assert first.refs == {mine} and 0 < first.actor.wait_s <= handover.PARTS_S
        now += handover.STUCK_S + 1
        first.turn()
        servers.deliver()
        servers.check(mine)
        assert mine in second.refs
    finally:
        servers.close()


def test_of_two_that_leave_one_gives_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would find the same room. The second computes on, also when the first takes long."""
    servers = Servers(blocks=16, rows=2, engines=3)
    try:
        to, first, second = servers.engines
        mine, *others = [servers.submit(engine) for engine in (1, 2, 2)]
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now)
        for engine in (first, second):
            engine.park()
        for _ in range(2):
            second.compute(1)
            assert second.refs == set(others) and 0 < second.actor.wait_s <= handover.PARTS_S
            now += handover.STUCK_S + 1
        first.turn()
        servers.deliver()
        servers.deliver()
        servers.check(mine, *others)
        assert mine in to.refs and len(to.refs) == 2 and len(second.refs) == 1, "there are no more rows"
    finally:
        servers.close()


def test_who_was_to_leave_and_stays_begins_anew(servers: Servers) -> None:
    """A step that is under way has those who were given: if they come back it is not theirs."""
    first = servers.engines[0]
    refs = [servers.submit(0) for _ in range(2)]
    first.compute()
    first.actor.scheduler.chunk_size.prompt_token_s = 1.0
    late = first.answer(first.steps[0])
    first.park()
    first.turn()
    assert len(first.refs) == 1
    first.park(Parked.NO)
    greeted = first.greeted
    first.turn()
    assert first.greeted == greeted + 1
    first.steps.clear()
    first.turn(late)
    first.meet()
    (left,) = first.refs
    before = servers.table.generated(left)
    first.compute()
    assert servers.table.generated(left) > before and left in refs
