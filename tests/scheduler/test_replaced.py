"""A worker that ends on wish is no death of which a request is guilty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorserve.actors.protocol.messages import Finish, WorkerReady

from .test_actor import Lives, start_of

TIMES = 5


@pytest.fixture
def lives() -> Iterator[Lives]:
    made = Lives()
    yield made
    made.memory.close()


@pytest.mark.parametrize("replaced", [True, False])
def test_only_deaths_are_blamed_on_who_was_computed(lives: Lives, replaced: bool) -> None:
    """Always in the middle of a step of this request alone."""
    for number in range(TIMES):
        lives.now.steps.clear()
        lives.now.turn(WorkerReady(6 + number, 32, 0, replaced))
        if lives.now.steps:
            assert start_of(lives.now) == 0
    assert lives.now.context.table.finish(lives.ref) == (0 if replaced else Finish.ERROR)
    assert bool(lives.now.actor.scheduler.suspects) is False


def test_a_wish_forgives_no_death_before_it(lives: Lives) -> None:
    lives.now.turn(WorkerReady(6, 32))
    lives.now.turn(WorkerReady(7, 32, 0, True))
    assert lives.now.actor.scheduler.suspects.refs() == [lives.ref]
