"""What follows from a death: how it is counted, once."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.protocol.kinds import KINDS
from actorserve.actors.runtime.process import RENEW
from actorserve.actors.supervisor.recovery import Recovery
from actorserve.actors.supervisor.restart_policy import Death
from actorserve.actors.supervisor.supervisor import Supervisor


class Intensity:
    """So many restarts, and no more."""

    def __init__(self, most: int) -> None:
        self.left = most

    def allow(self, now: float) -> bool:
        self.left -= 1
        return self.left >= 0


class Supervised:
    """Stands for the supervisor; what it was told to do."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.done: list[str] = []
        self.ready = True
        self.output: Any = SimpleNamespace(say=lambda text, level="info": self.said.append(text))
        self.shutdown: Any = SimpleNamespace(begins_last_life=lambda child, death: False)
        self.parking: Any = SimpleNamespace(failed=lambda child, death: self.done.append("parked"))
        self.rests: list[bool] = []
        board = SimpleNamespace(
            in_flight=lambda position: ("", 0), set_rests=lambda position, rests: self.rests.append(rests)
        )
        self.memory: Any = SimpleNamespace(board=board)
        self.children: list[Any] = []

    def start(self, child: Any) -> None:
        self.done.append("started")

    def end(self, status: int, reason: str) -> None:
        self.done.append("ended")


def child_of(supervised: Supervised, kind: str, most: int, **more: Any) -> Any:
    """One that may die so often."""
    about: dict[str, Any] = {"on_trial": False, "with_others": False, "found": ("", 0), "parked": False, **more}
    child = SimpleNamespace(
        **about, traits=KINDS[kind], stopping=False, waits=False, gone=asyncio.Event(), intensity=Intensity(most)
    )
    child.spec, child.group = SimpleNamespace(position=0, engine=0), [child]
    supervised.children.append(child)
    return child


def death_by(number: int) -> Death:
    return Death(actor="worker-1", pid=1, returncode=number, uptime=1.0, restarts=0)


@pytest.mark.parametrize("most", [0, 1, 2, 5])
async def test_an_engine_on_trial_is_parked_behind_as_many_deaths_as_others_may_die(most: int) -> None:
    """And never ends those that compute."""
    supervised = Supervised()
    child = child_of(supervised, "worker", most, on_trial=True)
    for _ in range(most + 1):
        Recovery(supervised).follow(child, death_by(-signal.SIGKILL), False, False)  # type: ignore[arg-type]
    assert supervised.done == ["started"] * most + ["parked"]


async def test_a_death_with_others_is_not_counted() -> None:
    supervised = Supervised()
    child = child_of(supervised, "worker", 0, on_trial=True, with_others=True)
    Recovery(supervised).follow(child, death_by(-signal.SIGKILL), False, False)  # type: ignore[arg-type]
    assert supervised.done == ["started"] and child.intensity.left == 0


async def test_an_engine_on_trial_may_ask_to_be_replaced() -> None:
    """As one that has been told to sleep does while it starts."""
    supervised = Supervised()
    child = child_of(supervised, "worker", 0, on_trial=True)
    Recovery(supervised).follow(child, death_by(RENEW), False, False)  # type: ignore[arg-type]
    assert supervised.done == ["started"] and child.intensity.left == 0


async def test_those_that_are_killed_with_one_that_died_do_not_end_a_start() -> None:
    supervised = Supervised()
    supervised.ready = False
    recovery = Recovery(supervised)  # type: ignore[arg-type]
    first, second = (child_of(supervised, "worker", 1) for _ in range(2))
    second.signal = lambda number: None
    recovery.follow(first, death_by(-signal.SIGKILL), True, False)
    recovery.follow(second, death_by(-signal.SIGKILL), False, False)
    assert supervised.done == ["started"] * 2


@pytest.mark.parametrize("kind", ["tools", "caretaker", "porter", "herald", "media", "keeper"])
async def test_what_the_server_does_without_is_left_down(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    supervised = Supervised()
    child = child_of(supervised, kind, 0)
    Recovery(supervised).follow(child, death_by(1), True, False)  # type: ignore[arg-type]
    assert supervised.done == [] and child.gone.is_set() and "left down" in supervised.said[0]
    assert supervised.rests == [True]


async def test_one_that_could_not_be_started_yet_is_started_with_its_group() -> None:
    """Another of it has died while there was no room for its process, and waits for a death that nobody will see."""
    supervised = Supervised()
    recovery = Recovery(supervised)  # type: ignore[arg-type]
    first, second = (child_of(supervised, "worker", 5, up=False) for _ in range(2))
    second.signal = lambda number: None
    recovery.follow(first, death_by(-signal.SIGSEGV), True, False)
    assert second.with_others and first.waits and supervised.done == []
    more: Any = SimpleNamespace(recovery=recovery, start=supervised.start)
    Supervisor._start_again(more, second)
    assert supervised.done == ["started"] * 2 and not (first.waits or second.waits or second.with_others)
