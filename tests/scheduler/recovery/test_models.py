"""Schedulers of several models: what is asked of one is never another's, whoever dies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.messages import Admit, Cancel
from actorserve.actors.protocol.topology import System
from actorserve.actors.supervisor.shared_memory import Memory
from tests.scheduler.recovery.two_engines import Engine, Servers


class Models(Servers):
    """One engine of a model, and two of another."""

    def __init__(self) -> None:
        also = ["org/other,data-parallel-size=2,max-num-seqs=4"]
        given = {"max_num_seqs": 4, "max_model_len": 256, "max_num_queued_reqs": 8, "also": also}
        config = make_config({**given, "debug": True})
        self.blocks = 64
        info = resolve_model(config)
        self.system = System(config, info, [info])
        self.memory = Memory(self.system)
        self.lanes: dict[str, list[Any]] = {name: [] for name in self.system.schedulers}
        self.engines = [Engine(self, number) for number in self.system.engines]
        for engine in self.engines:
            engine.meet()
        self.table = self.engines[0].context.table
        self._next = 0


@pytest.fixture
def models() -> Iterator[Models]:
    made = Models()
    yield made
    made.close()


def test_nothing_is_given_to_another_model(models: Models) -> None:
    first, second, third = models.engines
    alone, other = models.submit(0), models.submit(1)
    first.kill_worker()
    second.kill_worker()
    first.turn()
    second.turn()
    assert models.deliver() == 1, "one has nobody to give to, and waits"
    assert models.table.engine(alone) == 0 and alone in first.refs
    assert models.table.engine(other) == 2 and other in third.refs
    first.begin_worker()
    first.meet()
    assert first.steps, "and goes on with the next one"


def test_a_successor_takes_no_slot_of_another_model(models: Models) -> None:
    first, second, _ = models.engines
    own, other = models.submit(0), models.submit(1)
    first.start()
    assert first.refs == {own}
    assert not any(models.lanes.values()), "nor says anything of it"
    first.turn(Admit([other]), Cancel([other]))
    assert first.refs == {own} and other in second.refs
