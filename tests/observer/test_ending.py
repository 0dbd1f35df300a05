"""What a server's board says of its end: which requests were cut off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import cast

import pytest

from actorserve.actors.observer.attach import Attached
from actorserve.actors.observer.ending import Ending
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.topology import System
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.telemetry.gauges import FrontendGauge
from actorserve.shm.board.board import BoardWriter, Order
from tests.supervisor.test_shared_memory import MODEL


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(System(Config(max_num_seqs=2, max_num_queued_reqs=2, frontends=2), MODEL))
    yield made
    made.close()


def frontends(memory: Memory) -> list[BoardWriter]:
    return [BoardWriter(memory.board, spec.position, pid=os.getpid()) for spec in memory.system.with_clients]


def give_up(memory: Memory, *left: int) -> None:
    for spec, count in zip(memory.system.with_clients, left, strict=True):
        memory.order(spec, Order.GIVE_UP, count)


def test_those_that_ran_when_it_gave_up_were_cut_off(memory: Memory) -> None:
    ending = Ending(cast(Attached, memory))  # it has the system and the segment
    both = frontends(memory)
    both[0].set_gauge(FrontendGauge.IN_FLIGHT, 2)
    both[1].set_gauge(FrontendGauge.IN_FLIGHT, 1)
    give_up(memory, 2, 1)
    both[0].set_gauge(FrontendGauge.IN_FLIGHT, 0)  # it has told them
    assert ending.gives_up and ending.cut_off == 3


def test_those_that_ended_before_were_not(memory: Memory) -> None:
    """Where the frontend lingers for what comes on its connections still, and the time is up meanwhile."""
    ending = Ending(cast(Attached, memory))
    for frontend in frontends(memory):
        frontend.set_gauge(FrontendGauge.IN_FLIGHT, 2)
        frontend.set_gauge(FrontendGauge.IN_FLIGHT, 0)
    give_up(memory, 0, 0)
    assert ending.gives_up and not ending.cut_off


def test_those_of_a_frontend_that_was_killed_were(memory: Memory) -> None:
    """With its supervisor, which told nobody before."""
    ending = Ending(cast(Attached, memory))
    frontends(memory)[1].set_gauge(FrontendGauge.IN_FLIGHT, 2)
    assert not ending.gives_up and ending.cut_off == 2
