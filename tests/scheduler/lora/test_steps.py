"""Steps of sequences with adapters where not just the first that waits may start: after a worker's death while an
engine drains, and while one is tried alone. And rows that go on in the KV memory of a worker that has died.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest

from actorserve.actors.protocol.block_hash import extend_hashes, first_hash
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.topics.adapters import AdapterRead, DropAdapter, ReadAdapter
from actorserve.actors.scheduler.lora.adapters import Adapters
from actorserve.actors.scheduler.lora.worker_memory import AdapterLimits
from actorserve.actors.scheduler.policy.micro_batches import TRIAL
from actorserve.actors.scheduler.recovery.suspects import DEATHS_BEFORE_TRIAL, MARGIN
from actorserve.actors.scheduler.recovery.takeover import Takeover
from actorserve.actors.scheduler.scheduler import Scheduler
from actorserve.shm.adapters.registry import AdapterRegistryWriter, registry_bytes
from actorserve.shm.kv_map.pause import PauseState
from actorserve.shm.segment import Segment

from ..engine_model import BLOCK, END, Bench, expected_answer, prompt_of

LIMITS = AdapterLimits(in_batch=2, in_memory=2, workers=1)
NAMES = "abc"


class AdaptedBench(Bench):
    """Its worker has the adapters that it was told to read, and runs no row without its own."""

    def __init__(self, stages: int = 1) -> None:
        self.there: set[int] = set()
        self.registers = Segment.create(registry_bytes(1), "test")
        self.registry = AdapterRegistryWriter(self.registers, 0, 1, 0)
        super().__init__(stages=stages)

    def birth(self) -> None:
        self.adapters = Adapters(self.registry, LIMITS, self.table, [(name, f"/{name}") for name in NAMES])
        self.scheduler = Scheduler(self.table, self.limits, [END], self.kv, adapters=self.adapters)
        self.scheduler.recover()

    def new_worker(self) -> None:
        super().new_worker()
        self.there.clear()
        self.adapters.meet_worker(self.workers, [])

    def successor(self) -> Takeover:
        """The worker dies with all steps in flight and all adapters; the next one has its KV memory."""
        self.planned.clear()
        self.there.clear()
        self.adapters.outbox.clear()
        before, self.workers = self.workers, self.workers + 1
        self.epochs += 2
        self.scheduler.end_epoch(self.epochs - 1)
        found = self.scheduler.take_over(self.epochs, self.num_blocks, self.workers, self.layout, since=before)
        assert found is not None
        self.adapters.meet_worker(self.workers, [])
        return found

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
def bench(request: pytest.FixtureRequest) -> Iterator[AdaptedBench]:
    made = AdaptedBench(getattr(request, "param", 1))
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


def test_rows_go_on_in_kept_kv_memory_when_their_adapters_are_there_again(bench: AdaptedBench) -> None:
    """One without an adapter goes on at once; none computes its prompt again, and nobody takes their places."""
    plain = bench.submit(prompt_of(20, 4), 30, ignore_eos=True)
    begun = [bench.ask(name, seed) for seed, name in enumerate("ab")]
    bench.turns(8)
    assert len(bench.scheduler.batch) == 3
    waits = bench.ask("c", 2)
    found, before = bench.successor(), bench.scheduler.planned
    assert len(found.holdings) == 3 and found.tokens > 3 * 20
    assert bench.plan() and [one.adapter for one in bench.planned[-1].new_rows] == [0]
    bench.turns()
    assert bench.scheduler.planned - before == 4 * 49 - found.tokens, "each token but the last, once"
    assert bench.is_right(plain, 4) and bench.is_right(waits, 2)
    assert all(bench.is_right(ref, seed) for seed, ref in enumerate(begun))


def test_a_row_ends_whose_adapter_is_not_to_be_read_again(bench: AdaptedBench) -> None:
    refs = [bench.ask(name, seed) for seed, name in enumerate("ab")]
    bench.turns(8)
    bench.successor()
    assert not bench.plan()
    lost, read = [message for message in bench.adapters.outbox if isinstance(message, ReadAdapter)]
    gone, other = (NAMES.index(message.path[1:]) for message in (lost, read))
    bench.adapters.outbox.clear()
    bench.adapters.has_read(AdapterRead(bench.workers, 0, lost.adapter, "its files are gone"))
    bench.scheduler.turn_adapters()
    bench.there.add(read.adapter)
    bench.adapters.has_read(AdapterRead(bench.workers, 0, read.adapter))
    bench.turns()
    assert bench.table.finish(refs[gone]) == Finish.ADAPTER and bench.is_right(refs[other], other)
    assert not len(bench.scheduler.batch)


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_a_row_whose_adapter_is_read_while_a_pipeline_waits_for_tokens_is_told_later(bench: AdaptedBench) -> None:
    """The plan that would have told the worker of it comes to no step."""
    plain = bench.submit(prompt_of(20, 4), 100, ignore_eos=True)
    begun = bench.ask("a", 0)
    bench.turns(8)
    bench.successor()
    for _ in range(TRIAL):
        while bench.plan():
            pass
        bench.work()
    while bench.plan():
        pass
    for message in bench.adapters.outbox:
        assert isinstance(message, ReadAdapter)
        bench.there.add(message.adapter)
        bench.adapters.has_read(AdapterRead(bench.workers, 0, message.adapter))
    bench.adapters.outbox.clear()
    assert not bench.plan() and bench.scheduler.batch.is_announced[bench.scheduler.sequences[begun].row]
    bench.turns()
    assert bench.is_right(begun, 0)
    assert bench.answer(plain) == expected_answer(prompt_of(20, 4), 100, ignore_eos=True)


def test_who_is_tried_alone_in_kept_kv_memory_waits_for_its_adapter(bench: AdaptedBench) -> None:
    refs = [bench.ask(name, seed) for seed, name in enumerate("ab")]
    bench.turns(8)
    bench.successor()
    bench.scheduler.suspects.adopt(refs[1], DEATHS_BEFORE_TRIAL, 20 + MARGIN)
    bench.turns()
    assert all(bench.is_right(ref, seed) for seed, ref in enumerate(refs)) and not bench.scheduler.suspects


def test_who_went_over_to_another_load_stays_with_it(bench: AdaptedBench) -> None:
    """Through deaths of the scheduler; and nobody finds what it has computed by the hashes of the old one."""
    old = next(one.id for one in bench.registry.all() if one.name == "a")
    ref = bench.ask("a", 0)
    hashes = [bench.table.hashes(ref)[:16], bench.table.hashes(ref)[16:32]]
    assert not bench.plan()
    bench.adapters.outbox.clear()
    bench.adapters.has_read(AdapterRead(bench.workers, 0, old, "others", changed=True))
    for _ in range(12):
        bench.scheduler.turn_adapters()
        bench.turn()
    assert 0 < bench.table.generated(ref) < 30
    new = bench.scheduler.sequences[ref].adapter
    assert new != old and not bench.scheduler.pool.match(hashes)
    bench.scheduler.announce_ends()  # the old one is free
    bench.new_scheduler()
    bench.adapters.meet_worker(bench.workers, bench.there)
    assert bench.scheduler.sequences[ref].adapter == new and bench.registry.by_id(old) is None
    bench.turns()
    own = extend_hashes(first_hash("", new), array("i", prompt_of(20, 0)).tobytes(), BLOCK)
    assert bench.is_right(ref, 0) and len(bench.scheduler.pool.match([own[:16], own[16:32]])) == 2
