"""Of a server that gives up: how long a frontend has that is started once more to tell its clients."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.supervisor import shutdown
from actorserve.actors.supervisor.shutdown import Shutdown


class Frontend:
    """One that does not end by itself."""

    traits = SimpleNamespace(has_clients=True)

    def __init__(self, name: str) -> None:
        self.name = name
        self.gone = asyncio.Event()
        self.signals: list[signal.Signals] = []

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)


async def test_a_last_life_that_has_begun_is_not_killed_in_the_time_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may take long to start, since templates may have died with all others."""
    monkeypatch.setattr(shutdown, "LAST_LIFE_S", 0.0)
    begun, hangs = children = [Frontend("frontend-0"), Frontend("frontend-1")]
    supervisor: Any = SimpleNamespace(
        children=children,
        ready=True,
        forced=False,
        connections=SimpleNamespace(numbers=lambda name: [1]),
        output=SimpleNamespace(say=lambda text, level="info": None),
    )
    end: Any = Shutdown(supervisor)
    end._at_once = True
    assert end.begins_last_life(begun, SimpleNamespace(returncode=-9))
    end._too_late()
    assert (begun.signals, hangs.signals, supervisor.forced) == ([], [signal.SIGKILL], False)
    while not supervisor.forced:
        await asyncio.sleep(0)
    assert begun.signals == [signal.SIGKILL]
