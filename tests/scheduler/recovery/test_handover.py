"""Sequences change their engine: two schedulers over one request table, of which each may die at any store."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.actors.engines.loads import EngineLoads
from actorserve.actors.protocol.messages import Admit, Cancel, Finish, Stopped
from actorserve.actors.protocol.topics.administration import Pause, Resume
from actorserve.actors.runtime.in_flight import Ended
from actorserve.actors.scheduler.recovery import handover
from actorserve.actors.scheduler.recovery.suspects import DEATHS_BEFORE_TRIAL
from actorserve.actors.telemetry.gauges import SchedulerGauge

from .two_engines import PROMPT, Servers


class Died(BaseException):
    """A kill -9 at this line."""


def test_who_has_lost_its_worker_gives_all_away_and_logs_go_on(servers: Servers) -> None:
    first, second = servers.engines
    refs = [servers.submit(0) for _ in range(3)]
    first.compute()
    before = [servers.table.generated(ref) for ref in refs]
    assert min(before) > 0
    first.kill_worker()
    first.turn()
    assert not first.refs and [servers.table.engine(ref) for ref in refs] == [1, 1, 1]
    servers.deliver()
    servers.check(*refs)
    second.compute()
    assert all(servers.table.generated(ref) > count for ref, count in zip(refs, before, strict=True))
    first.begin_worker()
    first.meet()
    assert not first.refs and not first.steps
    assert first.actor.scheduler.stats.survived_worker == 3 and not second.actor.scheduler.stats.survived_scheduler


def test_what_the_dead_worker_has_said_counts_no_more(servers: Servers) -> None:
    first = servers.engines[0]
    ref = servers.submit(0)
    late = first.answer(first.steps[0])
    first.kill_worker()
    first.turn()
    first.turn(late)
    assert not servers.table.generated(ref) and not first.refs


def test_without_another_engine_they_wait_for_the_first_that_is_up(servers: Servers) -> None:
    first, second = servers.engines
    ref = servers.submit(0)
    for engine in (second, first):
        engine.kill_worker()
        engine.turn()
    assert first.refs == {ref} and not first.steps
    second.begin_worker()
    second.meet()
    first.turn()
    servers.deliver()
    servers.check(ref)
    assert second.refs == {ref} and second.steps


@pytest.mark.parametrize("stored", [False, True])
def test_a_death_before_and_behind_the_engine_word(servers: Servers, stored: bool) -> None:
    """Before it the successor owns the slot still, behind it the successor says what was not said."""
    first, second = servers.engines
    refs = [servers.submit(0) for _ in range(2)]
    first.compute()
    first.kill_worker()
    move = first.context.table.move

    def dies(ref: int, engine: int, deaths: int = 0) -> None:
        if stored:
            move(ref, engine, deaths)
        raise Died

    first.context.table.move = dies  # type: ignore[method-assign]
    with pytest.raises(Died):
        first.turn()
    assert not servers.lanes["scheduler@1"]
    first.start()
    assert refs[0] not in first.refs if stored else refs[0] in first.refs
    first.turn()
    servers.deliver()
    servers.check(*refs)
    assert second.refs == set(refs)
    servers.lanes["scheduler@1"].append(Admit(refs))  # it may come twice
    servers.deliver()
    servers.check(*refs)


def test_a_receiver_that_dies_before_it_has_heard_finds_the_word(servers: Servers) -> None:
    first, second = servers.engines
    ref = servers.submit(0)
    first.kill_worker()
    first.turn()
    second.start()
    assert second.refs == {ref}
    servers.deliver()
    servers.check(ref)


@pytest.mark.parametrize(("make", "finish"), [(Cancel, Finish.ABORT), (Stopped, Finish.STOP_STRING)])
@pytest.mark.parametrize("late", [False, True])
def test_what_comes_to_the_wrong_engine_goes_on_to_the_owner(
    servers: Servers, make: Any, finish: Finish, late: bool
) -> None:
    """Before its Admit, or behind it."""
    first = servers.engines[0]
    ref = servers.submit(0)
    first.kill_worker()
    first.turn()
    if late:
        servers.deliver()
    if make is Cancel:
        servers.table.cancel(ref)
    else:
        servers.table.set_stop(ref, 1)
    first.turn(make([ref]))
    if not late:
        servers.lanes["scheduler@1"].reverse()
    servers.deliver()
    assert servers.table.finish(ref) == finish and not any(engine.refs for engine in servers.engines)
    first.turn(make([ref]))
    assert not servers.deliver(), "of one that has ended nobody is told"


def test_a_full_engine_rejects_none_that_another_has_taken() -> None:
    servers = Servers(blocks=16, rows=1, queued=0)
    try:
        first, second = servers.engines
        refs = [servers.submit(0), servers.submit(1)]
        first.kill_worker()
        first.turn()
        servers.deliver()
        servers.check(*refs)
        assert not any(servers.table.finish(ref) for ref in refs) and second.refs == set(refs)
        assert servers.table.finish(servers.submit(1)) == Finish.REJECTED
    finally:
        servers.close()


def test_a_suspicion_goes_along(servers: Servers) -> None:
    """The third worker that dies on a sequence convicts it, whosever that was; its neighbour goes on."""
    deadly, neighbour = servers.submit(0), servers.submit(1)
    for deaths in range(1, DEATHS_BEFORE_TRIAL + 2):
        engine = next(one for one in servers.engines if deadly in one.refs)
        engine.compute(2)  # it is part of the oldest step
        engine.kill_worker()
        engine.turn()
        servers.deliver()
        if deaths <= DEATHS_BEFORE_TRIAL:
            owner = next(one for one in servers.engines if deadly in one.refs)
            assert owner is not engine and owner.actor.scheduler.suspects.deaths(deadly) == deaths
        engine.begin_worker()
        engine.meet()
    assert servers.table.finish(deadly) == Finish.ERROR
    assert not servers.table.finish(neighbour)


@pytest.mark.parametrize("how", [Ended.REPLACED, Ended.OUTSIDE])
def test_a_worker_that_was_replaced_or_killed_by_somebody_blames_nobody(servers: Servers, how: Ended) -> None:
    first, second = servers.engines
    ref = servers.submit(0)
    first.kill_worker(how)
    first.turn()
    servers.deliver()
    assert second.refs == {ref} and not second.actor.scheduler.suspects


def test_loads_are_those_of_the_board(servers: Servers) -> None:
    first = servers.engines[0]
    servers.submit(0)
    loads = EngineLoads(servers.memory.board, servers.system)
    assert [loads.is_up(engine) for engine in loads.engines] == [True, True]
    assert sum(loads.load(0)[:2]) == 1 and not any(loads.load(1)) and loads.load(0).prompted == len(PROMPT)
    first.kill_worker()
    assert not loads.is_up(0)
    first.turn()
    position = servers.system.by_name["scheduler@0"].position
    assert not servers.memory.board.gauge(position, SchedulerGauge.BLOCKS_TOTAL)


def test_who_waits_goes_where_rows_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """When all rows are taken; no more than there are, and nobody who is wanted here."""
    monkeypatch.setattr(handover, "SHARE_S", 0.0)
    servers = Servers(blocks=32, rows=2)
    try:
        first, second = servers.engines
        running = [servers.submit(0) for _ in range(2)]
        first.compute(2)
        assert first.actor.scheduler.batch.full and not servers.deliver()
        wanted = servers.submit(0, pinned=True)
        first.turn(Pause(7, "wait", False))
        waiting = [servers.submit(0) for _ in range(3)]
        assert not servers.deliver(), "the other one may have nothing that has begun, and compute nothing"
        first.turn(Resume(8))
        servers.deliver()
        servers.check(*running, *waiting, wanted)
        assert second.refs == set(waiting[:2]) and first.refs == {*running, waiting[2], wanted}
        first.turn()
        assert not servers.deliver(), "there is no room any more"
        first.compute(8)
        assert all(servers.table.generated(ref) for ref in running)
    finally:
        servers.close()


@pytest.mark.parametrize("waits", [False, True])
def test_what_has_begun_goes_on_in_an_engine_for_prompts_while_its_end_is_waited_for(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """The other engine has nothing that has begun, and computes nothing any more."""
    first, second = servers.engines
    for engine in servers.engines:
        assert engine.actor.handover is not None
        monkeypatch.setattr(engine.actor.handover, "_num_prefill", 1)
    monkeypatch.setattr(first.actor.handover, "_prefills", True)
    ref = servers.submit(0, limit=4)
    if waits:
        for engine in servers.engines:
            engine.turn(Pause(7, "wait", False))
    while first.steps:
        first.compute(1)
    servers.deliver()
    assert second.refs == (set() if waits else {ref})
    assert bool(servers.table.finish(ref)) is waits


def test_a_suspect_that_is_taken_over_is_tried_where_it_stands(servers: Servers) -> None:
    """Its successor tells the worker in which row it is, before any step of that row."""
    first = servers.engines[0]
    deadly, other = servers.submit(0), servers.submit(0)
    first.compute()
    servers.table.move(deadly, 0, deaths=DEATHS_BEFORE_TRIAL)
    first.start()
    first.meet()
    told: set[int] = set()
    alone = []
    for _ in range(24):
        step = first.steps[0]
        told |= {new.row for new in step.new_rows}
        assert set(step.rows.tolist()) <= told
        alone.append(len(step.rows) == 1)
        first.compute(1)
    assert alone[0] and not all(alone)
    assert servers.table.moves(deadly) == (1, 0), "it is cleared, for others, too"
    assert {servers.table.generated(ref) > 4 for ref in (deadly, other)} == {True}
