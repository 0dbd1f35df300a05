"""Turns of an actor in an event loop, over real rings: whatever asks for another one, at most one is to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from actorserve.actors.protocol.topics.calls import Detokenize, Synced
from actorserve.actors.runtime.loop import BEAT_S, LoopActor, LoopTurns
from actorserve.actors.runtime.process import FULL_LANE_S
from tests.frontend.others import Others

LONG = list(range(1 << 15))  # tokens


class Planned:
    """What is to be done, and when."""

    def __init__(self, loop: Loop, at: float, call: Callable[[], None]) -> None:
        self._loop, self.at, self.call = loop, at, call

    def cancel(self) -> None:
        if self in self._loop.planned:
            self._loop.planned.remove(self)


class Loop:
    """An event loop whose time the test makes pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.planned: list[Planned] = []
        self.woken: Callable[[], None] = lambda: None

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        self.woken = call

    def call_later(self, seconds: float, call: Callable[[], None]) -> Planned:
        self.planned.append(Planned(self, self.now + seconds, call))
        return self.planned[-1]

    def call_soon(self, call: Callable[[], None]) -> Planned:
        return self.call_later(0.0, call)

    def run_until(self, end: float) -> None:
        while (first := min(self.planned, key=lambda one: one.at)).at <= end:
            self.planned.remove(first)
            self.now = first.at
            first.call()
        self.now = end


class Counted(LoopActor):
    """Counts its turns; `others` do something in so many of the next ones."""

    def __init__(self) -> None:
        self.turns = self.others = 0
        self.got: list[Any] = []

    def handle(self, message: Any) -> None:
        self.got.append(message)

    def do_work(self) -> int:
        self.turns += 1
        return 0

    def published(self) -> int:
        did, self.others = min(self.others, 1), max(0, self.others - 1)
        return did


class Scene:
    """A frontend's turns among actors that a test plays."""

    def __init__(self) -> None:
        self.others = Others()
        self.actor = Counted()
        self.loop = cast(Any, Loop())
        self.turns = LoopTurns(self.others.context, self.loop, self.actor)
        self.turns.start()

    def fill(self) -> None:
        """The lane to the renderer, until it takes no more."""
        for call in range(1, 1000):
            self.others.context.post("renderer-0", Detokenize(call, LONG))
            if not self.others.context.flush():
                return
        raise AssertionError("the lane takes everything")


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_an_idle_one_turns_at_its_beats_alone(scene: Scene) -> None:
    scene.loop.run_until(10.25 * BEAT_S)
    assert scene.actor.turns == 11 and len(scene.loop.planned) == 1


async def test_a_full_lane_is_tried_by_one_timer_however_often_it_beats_and_is_woken(scene: Scene) -> None:
    scene.fill()
    loop, actor = scene.loop, scene.actor
    for number in range(1, 21):
        loop.woken()
        scene.turns.turn()
        loop.run_until(number * BEAT_S)
        assert len(loop.planned) == 2, "the beat, and the next turn"
    assert actor.turns < 1.2 * loop.now / FULL_LANE_S
    while scene.others.received("renderer-0"):
        loop.run_until(loop.now + 2 * FULL_LANE_S)
    settled = actor.turns
    loop.run_until(loop.now + 2 * BEAT_S)
    assert actor.turns == settled + 2 and len(loop.planned) == 1


async def test_what_came_is_handled_at_the_wake_up(scene: Scene) -> None:
    scene.others.contexts["renderer-0"].post("frontend-0", Synced(1))
    scene.others.contexts["renderer-0"].flush()
    scene.loop.woken()
    assert scene.actor.got == [Synced(1)]


async def test_others_that_do_something_have_another_turn(scene: Scene) -> None:
    before, scene.actor.others = scene.actor.turns, 2
    scene.turns.turn()
    scene.loop.run_until(scene.loop.now)
    assert scene.actor.turns == before + 3 and len(scene.loop.planned) == 1
