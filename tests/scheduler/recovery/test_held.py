"""Several engines while an operator waits for the end of what has begun (/pause and /sleep with mode=wait)."""

from __future__ import annotations

import pytest

from actorserve.actors.protocol.topics.administration import END, Pause, Paused, Resume, Sleep
from actorserve.actors.scheduler.scheduler import Scheduler
from actorserve.shm.kv_map.pause import PauseState

from .two_engines import Engine, Servers


def is_paused(engine: Engine) -> bool:
    return engine.actor.scheduler.pause.state is PauseState.PAUSED


def compute_all(engine: Engine) -> None:
    while engine.steps:
        engine.compute(1)


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("dies", [False, True])
def test_an_engine_without_work_computes_what_it_may_still_be_given_while_an_end_is_waited_for(
    servers: Servers, sleeps: bool, dies: bool
) -> None:
    """By one that has not heard of it yet, or by one that has, and whose worker dies."""
    first, second = servers.engines
    ref = servers.submit(0, limit=8)
    first.compute(2)
    wanted = Sleep(7, 1, "wait", False, 0, None) if sleeps else Pause(7, "wait", False)

    def has_ended(engine: Engine) -> bool:
        return engine.actor.scheduler.sleep.is_asleep if sleeps else is_paused(engine)

    for engine in (first, second) if dies else (second,):
        engine.turn(wanted)
    first.kill_worker()
    first.turn()
    if not dies:
        first.turn(wanted)
    assert not first.refs and not has_ended(second)
    servers.deliver()
    compute_all(second)
    first.turn()
    assert servers.table.finish(ref) and has_ended(first) and has_ended(second)


def test_a_pause_that_is_asked_again_while_it_waits_resets_no_cache_once_more(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever is patient; a successor of the scheduler, which does not know of it, does."""
    first, _ = servers.engines
    servers.submit(0, limit=8)
    first.compute(2)
    resets: list[bool] = []
    monkeypatch.setattr(Scheduler, "reset_prefix_cache", lambda scheduler, recompute_running: resets.append(True))
    for _ in range(3):
        first.turn(Pause(7, "wait", True))
    assert len(resets) == 1 and not is_paused(first)
    first.turn(Pause(8, "wait", True))
    assert len(resets) == 2


@pytest.mark.parametrize("is_busy", [False, True])
def test_who_is_begun_without_a_token_ends_where_it_is_while_that_is_waited_for(
    servers: Servers, is_busy: bool
) -> None:
    """Another engine does not see that it is begun: it holds by then, or would not go on with it."""
    first, second = servers.engines
    busy = servers.submit(0, limit=20) if is_busy else None
    if is_busy:
        first.compute(2)
    ref = servers.submit(1, limit=8)
    assert second.steps and not servers.table.generated(ref)
    for engine in (second, first):
        engine.turn(Pause(7, "wait", False))
    assert is_paused(first) is not is_busy and not is_paused(second)
    if not is_busy:
        second.compute(2)
    second.kill_worker()
    second.turn()
    assert not servers.deliver() and second.refs == {ref}
    second.begin_worker()
    second.meet()
    for engine in (first, second, first):
        compute_all(engine)
        engine.turn()
    assert servers.table.finish(ref) and is_paused(first) and is_paused(second)
    assert busy is None or servers.table.finish(busy)


def test_a_pause_is_not_waited_for_where_no_worker_is_to_come(servers: Servers) -> None:
    first, second = servers.engines
    ref = servers.submit(1)
    for engine in (second, first):
        engine.turn(Pause(7, "wait", False))
    second.park()
    second.turn()
    assert second.refs == {ref} and second.steps, "it computes on: the other one holds"
    second.kill_worker()
    second.turn()
    servers.deliver()
    assert first.refs == {ref} and is_paused(second)
    first.turn(Resume(8))
    compute_all(first)
    assert servers.table.finish(ref)


def test_an_engine_whose_worker_is_away_computes_what_it_may_be_given_while_an_end_is_waited_for(
    servers: Servers,
) -> None:
    first, second = servers.engines
    ref = servers.submit(1, limit=8)
    second.compute(2)
    first.kill_worker()
    for engine in servers.engines:
        engine.turn(Pause(7, "wait", False))
    assert not is_paused(first)
    second.kill_worker()
    second.turn()
    first.begin_worker()
    first.meet()
    second.turn()
    servers.deliver()
    assert first.refs == {ref}
    compute_all(first)
    second.turn()
    assert servers.table.finish(ref) and is_paused(first) and is_paused(second)


def test_what_has_begun_in_an_engine_elsewhere_is_waited_for(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its machine goes, the engine here computes it; the second one plays the link and the machine."""
    first, second = servers.engines
    assert first.actor.handover is not None
    monkeypatch.setattr(first.actor.handover.draining, "_elsewhere", {1})
    ref = servers.submit(1, limit=8)
    second.compute(2)
    first.turn(Pause(7, "wait", False))
    assert not is_paused(first) and servers.table.generated(ref)
    second.kill_worker()
    second.turn()
    servers.deliver()
    assert first.refs == {ref}
    compute_all(first)
    assert servers.table.finish(ref) and is_paused(first)


def test_an_engine_elsewhere_that_has_nothing_or_holds_keeps_nobody_from_a_pause(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = servers.engines
    assert first.actor.handover is not None
    monkeypatch.setattr(first.actor.handover.draining, "_elsewhere", {1})
    first.turn(Pause(7, "wait", False))
    assert is_paused(first)
    first.turn(Resume(8))
    servers.submit(1, limit=8)
    second.compute(2)
    first.turn(Pause(9, "wait", False))
    assert not is_paused(first)
    second.turn(Pause(9, "keep", False))
    first.turn()
    assert is_paused(first)


def test_what_a_link_has_begun_without_a_token_is_waited_for(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its word says when its engine has ended it."""
    first, second = servers.engines
    assert first.actor.handover is not None
    monkeypatch.setattr(first.actor.handover.draining, "_elsewhere", {1})
    pause = second.actor.scheduler.pause
    for state, is_over in ((PauseState.DRAINING, False), (PauseState.ENDING, True)):
        pause.set(state)
        first.turn(Pause(7, "wait", False))
        assert is_paused(first) is is_over


def test_an_engine_that_others_may_give_to_holds_only_when_it_is_told(servers: Servers) -> None:
    """What comes with tokens it computes, and no other; a successor, too."""
    first, second = servers.engines
    told = servers.lanes["frontend-0"] = []
    begun = servers.submit(0, limit=8)
    first.compute(2)
    second.turn(Pause(8, END, False))
    new = servers.submit(1, limit=8)
    first.turn(Pause(7, "wait", False))
    first.kill_worker()
    second.start()
    second.meet()
    second.turn()
    assert not second.steps and second.refs == {new}
    second.turn(Pause(8, END, False))  # asked again, since nobody knows any more who waits
    first.turn()
    servers.deliver()
    compute_all(second)
    assert servers.table.finish(begun) and not servers.table.generated(new)
    first.turn()
    assert told == [Paused(8), Paused(7)] and is_paused(first) and not is_paused(second)
    second.turn(Pause(8, "keep", False))
    assert is_paused(second)


def test_a_pause_of_its_own_that_waits_holds_though_others_may_give(servers: Servers) -> None:
    _, second = servers.engines
    second.turn(Pause(8, END, False), Pause(9, "wait", False))
    servers.engines[0].turn(Pause(9, "wait", False))
    second.turn()
    assert is_paused(second)
