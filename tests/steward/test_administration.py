"""What operators of servers elsewhere ask of an engine, as its steward passes it on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.protocol.topics.administration import CacheReset, Pause, Paused, ResetEncoderCache, Resume
from actorserve.actors.steward.administration import StewardAdministration


class Life:
    """Of a steward, with what its scheduler and a link are told."""

    def __init__(self, incarnation: int) -> None:
        self.asked: list[Any] = []
        self.answered: list[Any] = []
        self.channel: Any = SimpleNamespace(send=self.answered.append)
        context: Any = SimpleNamespace(
            incarnation=incarnation,
            system=SimpleNamespace(schedulers=["scheduler"]),
            post=lambda name, message: self.asked.append(message),
            flush=lambda: True,
        )
        self.made = StewardAdministration(context)


@pytest.mark.parametrize("incarnation", [1, (1 << 15) - 1, 1 << 40])
def test_an_answer_to_a_dead_steward_is_of_nobody(incarnation: int) -> None:
    before, life = Life(incarnation), Life(incarnation + 1)
    before.made.ask(before.channel, Resume(7))
    life.made.ask(life.channel, ResetEncoderCache(8))
    (late,), (asked,) = before.asked, life.asked
    life.made.answered(Paused(late.call))
    assert not life.answered
    life.made.answered(CacheReset(asked.call))
    assert life.answered == [CacheReset(8)]
    assert 0 < asked.call < 1 << 32, "schedulers answer to the frontend that the upper half names"


def test_what_is_asked_again_is_one_call() -> None:
    """A link does so where a scheduler may have died with what it was asked."""
    life = Life(1)
    for _ in range(2):
        life.made.ask(life.channel, Pause(7, "wait"))
    first, again = life.asked
    assert first == again
    life.made.answered(Paused(first.call))
    life.made.ask(life.channel, Pause(7, "wait"))
    assert life.asked[2].call != first.call
