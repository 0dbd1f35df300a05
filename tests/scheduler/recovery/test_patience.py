"""Who has lost a worker that will soon be there again with its memory waits for it."""

from __future__ import annotations

import time

import pytest

from actorserve.actors.runtime.in_flight import Ended
from actorserve.actors.scheduler.recovery import patience
from actorserve.shm.board.board import Parked

from .two_engines import PROMPT, Engine, Servers


def lose(servers: Servers, start_s: float = 0.2, token_s: float = 0.05) -> list[int]:
    """Two sequences of the first engine, whose worker has died; a prompt's token takes so long to compute."""
    first = servers.engines[0]
    first.kill_worker(Ended.OUTSIDE)
    first.begin_worker()
    first.meet(start_s)
    refs = [servers.submit(0) for _ in range(2)]
    first.compute()
    first.actor.scheduler.chunk_size.prompt_token_s = token_s
    first.kill_worker(Ended.OUTSIDE)
    first.turn()
    return refs


def test_a_worker_that_is_soon_there_again_is_waited_for(servers: Servers) -> None:
    """With what it had computed nothing is computed again."""
    first = servers.engines[0]
    refs = lose(servers)
    before = [servers.table.generated(ref) for ref in refs]
    assert first.refs == set(refs) and 0 < first.actor.wait_s <= patience.LATE * 0.3 and not servers.deliver()
    first.begin_worker()
    first.meet(0.2)
    assert all(new.num_computed_tokens >= len(PROMPT) for new in first.steps[0].new_rows)
    first.compute(2)
    assert all(servers.table.generated(ref) > count for ref, count in zip(refs, before, strict=True))
    assert first.actor.scheduler.stats.survived_worker == 2 and patience_over(first) <= time.monotonic() + 1


def test_one_that_is_late_is_waited_for_no_longer(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = servers.engines
    refs = lose(servers)
    assert first.refs == set(refs)
    now = patience_over(first)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first.turn()
    servers.deliver()
    servers.check(*refs)
    assert second.refs == set(refs)


def patience_over(engine: Engine) -> float:
    """When it will be."""
    assert engine.actor.handover is not None
    return time.monotonic() + engine.actor.handover.waits_s + 1


@pytest.mark.parametrize(
    ("start_s", "token_s"), [(0.2, 0.0001), (5.0, 1.0), (0.0, 1.0)], ids=["little to do", "a long start", "no memory"]
)
def test_a_worker_that_is_not_worth_it_is_not_waited_for(servers: Servers, start_s: float, token_s: float) -> None:
    refs = lose(servers, start_s, token_s)
    assert not servers.engines[0].refs
    servers.deliver()
    servers.check(*refs)


def test_who_is_parked_waits_for_nobody(servers: Servers) -> None:
    first, second = servers.engines
    refs = lose(servers)
    first.park(Parked.SLEEP)
    first.turn()
    servers.deliver()
    assert second.refs == set(refs)
