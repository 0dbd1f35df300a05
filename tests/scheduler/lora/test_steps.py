"""Steps of sequences with adapters where not just the first that waits may start: after a worker's death while an
engine drains, and while one is tried alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorserve.actors.protocol.messages import AdapterRead, DropAdapter, ReadAdapter
from actorserve.actors.scheduler.lora.adapters import AdapterLimits, Adapters
from actorserve.actors.scheduler.recovery.suspects import DEATHS_BEFORE_TRIAL, MARGIN
from actorserve.actors.scheduler.scheduler import Scheduler
from actorserve.shm.adapters.registry import AdapterRegistryWriter, registry_bytes
from actorserve.shm.kv_map.pause import PauseState
from actorserve.shm.segment import Segment

from ..engine_model import END, Bench, expected_answer, prompt_of

LIMITS = AdapterLimits(in_batch=2, in_memory=2, workers=1)
NAMES = "abc"


class AdaptedBench(Bench):
    """Its worker has the adapters that it was told to read, and runs no row without its own."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.registers = Segment.create(registry_bytes(1), "test")
        self.registry = AdapterRegistryWriter(self.registers, 0, 1, 0)
        super().__init__()

    def birth(self) -> None:
        self.adapters = Adapters(self.registry, LIMITS, self.table, [(name, f"/{name}") for name in NAMES])
        self.scheduler = Scheduler(self.table, self.limits, [END], self.kv, adapters=self.adapters)
        self.scheduler.recover()

    def new_worker(self) -> None:
        super().new_worker()
        self.there.clear()
        self.adapters.meet_worker(self.workers, [])

    def ask(self, name: str, seed: int) -> int:
        """A request for this adapter."""
        adapter = next(one.id for one in self.registry.all() if one.name == name)
        return self.submit(prompt_of(20, seed), 30, ignore_eos=True, adapter=adapter)

    def turn(self) -> bool:
        """The scheduler plans, the worker computes and reads; was anything done?"""
        while self.plan():
            new = [one.adapter for one in self.planned[-1].new_rows if one.adapter]
            assert self.there.issuperset(new), "a row is planned whose adapter is not there"
            assert len({one.adapter for one in self.scheduler.batch.running()} - {0}) <= LIMITS.in_batch
        worked = self.work()
        told, read = list(self.adapters.outbox), []
        self.adapters.outbox.clear()
        for message in told:
            if isinstance(message, ReadAdapter):
                self.there.add(message.adapter)
                read.append(message.adapter)
            elif isinstance(message, DropAdapter):
                self.there.discard(message.adapter)
        for adapter in read:
            self.adapters.has_read(AdapterRead(self.workers, 0, adapter))
        return worked or bool(told)

    def turns(self, count: int = 1000) -> None:
        """So many, or until nothing is left to do."""
        for _ in range(count):
            if not self.turn():
                return

    def is_right(self, ref: int, seed: int) -> bool:
        return self.answer(ref) == expected_answer(prompt_of(20, seed), 30, ignore_eos=True)


@pytest.fixture
def bench() -> Iterator[AdaptedBench]:
    made = AdaptedBench()
    yield made
    made.segment.close()
    made.registers.close()


def test_what_has_begun_ends_with_its_adapter_though_the_worker_dies_while_nothing_else_begins(
    bench: AdaptedBench,
) -> None:
    begun = [bench.ask(name, seed) for seed, name in enumerate("ab")]
    bench.turns(8)
    assert len(bench.scheduler.batch) == len(begun)
    waits = bench.ask("c", 2)
    bench.scheduler.pause.set(PauseState.DRAINING)
    bench.new_worker()
    bench.turns()
    assert all(bench.is_right(ref, seed) for seed, ref in enumerate(begun))
    assert not bench.table.generated(waits), "it had not begun"
    bench.scheduler.pause.set(PauseState.RUNNING)
    bench.turns()
    assert bench.is_right(waits, 2)


def test_who_is_tried_alone_gets_its_adapter_from_those_who_wait_for_that(bench: AdaptedBench) -> None:
    """Else nobody would go on any more: they hold all places of adapters, and are not planned before it is cleared."""
    others = [bench.ask(name, seed) for seed, name in enumerate("ab")]
    bench.turns(8)
    assert len(bench.scheduler.batch) == len(others)
    tried = bench.ask("c", 2)
    bench.scheduler.suspects.adopt(tried, DEATHS_BEFORE_TRIAL, 20 + MARGIN)
    bench.turns()
    assert bench.is_right(tried, 2) and not bench.scheduler.suspects
    assert all(bench.is_right(ref, seed) for seed, ref in enumerate(others))
