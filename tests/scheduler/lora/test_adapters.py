"""Who may start with which adapter, what the worker is told, and what a successor makes of the registry."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import msgspec
import pytest

from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topics.adapters import (
    AdapterChanged,
    AdapterRead,
    AdapterReplaced,
    DropAdapter,
    LoadAdapter,
    ReadAdapter,
    UnloadAdapter,
)
from actorserve.actors.scheduler.batch import RunningBatch
from actorserve.actors.scheduler.lora.adapters import Adapters
from actorserve.actors.scheduler.lora.worker_memory import AdapterLimits
from actorserve.actors.scheduler.sequence import Sequence
from actorserve.actors.scheduler.waiting import WaitingQueue
from actorserve.shm.adapters.registry import AdapterRegistryWriter, AdapterState, registry_bytes
from actorserve.shm.segment import Segment
from actorserve.shm.table.table import RequestTable, table_bytes

WORKER = 7  # its incarnation


class Scene:
    """The scheduler's adapters, whose life can be ended; this test is the worker and the frontends."""

    def __init__(self, workers: int = 1, first: Scene | None = None) -> None:
        """`first`: the scene of the first engine, beside which this is the second one's."""
        at = -(-registry_bytes(2) // 4096) * 4096
        self.segment: Segment = first.segment if first else Segment.create(at + table_bytes(8, 64, 8), "test")
        self.table: RequestTable = first.table if first else RequestTable.create(self.segment, at, 8, 64, 8)
        self.registry = AdapterRegistryWriter(self.segment, 0, 2, int(first is not None))
        self.limits = AdapterLimits(in_batch=2, in_memory=3, workers=workers)
        self.waiting, self.batch = WaitingQueue(False), RunningBatch(8)
        self._arrivals = count(1)
        self.sequences: dict[int, Sequence] = {}
        self.begin()

    def begin(self, *there: int) -> None:
        """A life of the scheduler, which meets a worker that has these in memory."""
        self.adapters = Adapters(self.registry, self.limits, self.table, [("given", "/given")])
        self.adapters.batch = self.batch
        self.adapters.meet_worker(WORKER, there)

    def told(self) -> list[object]:
        found: list[object] = list(self.adapters.outbox)
        self.adapters.outbox.clear()
        self.adapters.published()
        return found

    def id_of(self, name: str) -> int:
        return max(one.id for one in self.registry.all() if one.name == name)

    def state(self, name: str) -> set[AdapterState]:
        return {one.state for one in self.registry.all() if one.name == name}

    def load(self, name: str, path: str = "/p", in_place: bool = False) -> None:
        self.adapters.load(LoadAdapter(1 << 32, name, path, in_place))

    def read(self, adapter: int, problem: str = "", rank: int = 0) -> None:
        self.adapters.has_read(AdapterRead(WORKER, rank, adapter, problem))

    def ready(self, name: str) -> int:
        """It was loaded."""
        self.load(name)
        adapter = self.id_of(name)
        self.read(adapter)
        self.told()
        return adapter

    def wait(self, adapter: int) -> Sequence:
        """A sequence that wants to start."""
        slot = next(self._arrivals)
        sequence = Sequence(1 << 32 | slot, slot, Generation(Sampling(0), adapter=adapter), [0])
        self.waiting.add(sequence)
        self.sequences[sequence.ref] = sequence
        return sequence

    def start(self) -> Sequence | None:
        """The next one, if there is one that may."""
        sequence = self.adapters.first(self.waiting)
        if sequence is not None:
            self.waiting.remove(sequence.ref)
            self.batch.place(sequence, 0, 8, 0)
        return sequence

    def end(self, sequence: Sequence) -> None:
        self.batch.remove(sequence)
        del self.sequences[sequence.ref]

    def turn(self) -> list[object]:
        self.adapters.turn(self.sequences)
        return self.told()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.segment.close()


def test_a_load_is_told_to_all_when_the_worker_has_it(scene: Scene) -> None:
    scene.load("a")
    adapter = scene.id_of("a")
    assert scene.told() == [AdapterChanged(0, "given"), ReadAdapter(adapter, "/p")]
    assert scene.state("a") == {AdapterState.LOADING} and scene.registry.find("a") is None
    scene.load("a")  # again, by who waits beside the first or instead of it
    assert scene.told() == []
    scene.read(adapter)
    assert scene.told() == [AdapterChanged(0, "a")] and scene.state("a") == {AdapterState.READY}
    scene.load("a")
    assert scene.told() == [AdapterChanged(1 << 32, "a")]
    scene.load("a", "/other")
    (refusal,) = scene.told()
    assert isinstance(refusal, AdapterChanged) and refusal.status == 400 and "load_inplace" in refusal.problem


def test_one_that_cannot_be_used_leaves_nothing(scene: Scene) -> None:
    scene.load("bad")
    adapter = scene.id_of("bad")
    scene.told()
    scene.read(adapter, "its rank is too large")
    assert scene.told() == [DropAdapter(adapter), AdapterChanged(0, "bad", 400, "its rank is too large")]
    assert scene.state("bad") == set()


def test_all_of_a_group_must_have_read_it() -> None:
    scene = Scene(workers=2)
    scene.load("a")
    scene.read(scene.id_of("a"), rank=1)
    assert scene.state("a") == {AdapterState.LOADING}
    scene.read(scene.id_of("a"), rank=0)
    assert scene.state("a") == {AdapterState.READY}
    scene.segment.close()


def test_a_sequence_waits_until_its_adapter_is_in_memory_and_others_pass(scene: Scene) -> None:
    given = scene.id_of("given")
    scene.told()
    first, plain = scene.wait(given), scene.wait(0)
    assert scene.start() is plain
    assert scene.told() == [ReadAdapter(given, "/given")]
    assert scene.start() is None and scene.told() == []
    scene.read(given)
    assert scene.start() is first


def test_only_so_many_run_at_once_and_none_waits_for_ever(scene: Scene) -> None:
    """The third waits for a place. Behind it one whose adapter runs already does not pass, and one without does."""
    a, b, c = (scene.ready(name) for name in "abc")
    running = [scene.wait(adapter) for adapter in (a, b)]
    assert [scene.start(), scene.start()] == running
    third, behind, plain = scene.wait(c), scene.wait(a), scene.wait(0)
    assert scene.start() is plain and scene.start() is None
    scene.end(running[0])
    assert scene.start() is third and scene.start() is None
    scene.end(running[1])
    assert scene.start() is behind


def test_the_least_lately_used_gives_way_and_none_that_runs(scene: Scene) -> None:
    a, b, c = (scene.ready(name) for name in "abc")
    runs = scene.wait(a)
    assert scene.start() is runs
    scene.load("d")
    d = scene.id_of("d")
    assert scene.told() == [DropAdapter(b), ReadAdapter(d, "/p")]
    scene.read(d)
    scene.told()
    wants_b = scene.wait(b)
    assert scene.start() is None and scene.told() == [DropAdapter(c), ReadAdapter(b, "/p")]
    scene.read(b)
    assert scene.start() is wants_b


def test_loads_that_waited_for_no_room_leave_it_when_somebody_can_give_way(scene: Scene) -> None:
    """A device has no more slots than that: the last one waits there for a slot, which must come."""
    a, b, c = (scene.ready(name) for name in "abc")
    running = [scene.wait(adapter) for adapter in (a, b)]
    assert [scene.start(), scene.start()] == running
    scene.load("d")
    d = scene.id_of("d")
    assert scene.told() == [DropAdapter(c), ReadAdapter(d, "/p")]
    scene.load("e")
    assert scene.told() == [ReadAdapter(scene.id_of("e"), "/p")], "one more than there is room for"
    assert scene.turn() == [], "nobody can give way"
    scene.read(d)
    assert scene.turn() == [AdapterChanged(0, "d"), DropAdapter(d)]


def test_what_nobody_asked_for_is_dropped_again(scene: Scene) -> None:
    """A predecessor asked for it, and the worker had not read it when this life met the worker."""
    a = scene.ready("a")
    scene.begin()
    scene.told()
    scene.read(a, "there is no folder")
    assert scene.told() == []
    scene.read(a)
    assert scene.told() == [DropAdapter(a)] and scene.state("a") == {AdapterState.READY}


def test_unloading_waits_for_all_that_have_it(scene: Scene) -> None:
    """Those that run, those that wait, and those that a renderer still has."""
    a = scene.ready("a")
    sequence = scene.wait(a)
    assert scene.start() is sequence
    packed = msgspec.msgpack.encode(Generation(Sampling(0), adapter=a))
    rendered = scene.table.open_slot(5, packed, 1)
    scene.adapters.unload(UnloadAdapter(1 << 32, "a"))
    assert scene.turn() == [AdapterChanged(1 << 32, "a")]
    assert scene.state("a") == {AdapterState.UNLOADING} and scene.adapters.knows(a)
    scene.end(sequence)
    assert scene.turn() == [] and scene.state("a") == {AdapterState.UNLOADING}
    scene.table.cancel(rendered)
    assert scene.turn() == [DropAdapter(a)] and scene.state("a") == set() and not scene.adapters.knows(a)
    scene.adapters.unload(UnloadAdapter(1 << 32, "a"))
    assert scene.told() == [AdapterChanged(1 << 32, "a", 404, "it is not loaded")]


def test_another_in_its_place_has_another_id(scene: Scene) -> None:
    old = scene.ready("a")
    sequence = scene.wait(old)
    assert scene.start() is sequence
    scene.load("a", "/new", in_place=True)
    new = scene.id_of("a")
    found = scene.registry.find("a")
    assert found is not None and found.id == old  # until the new one is there
    scene.read(new)
    found = scene.registry.find("a")
    assert found is not None and found.id == new
    scene.turn()
    assert scene.adapters.knows(old)
    scene.end(sequence)
    scene.turn()
    assert not scene.adapters.knows(old) and scene.state("a") == {AdapterState.READY}


def test_a_successor_goes_on_with_what_it_finds(scene: Scene) -> None:
    """A death behind each store: loading, ready and not told, two ready ones, unloading."""
    a = scene.ready("a")
    scene.load("b")
    b = scene.id_of("b")
    scene.adapters.unload(UnloadAdapter(1 << 32, "a"))
    scene.begin(a)
    told = scene.told()
    assert ReadAdapter(b, "/p") in told and AdapterChanged(0, "given") in told
    assert scene.turn() == [DropAdapter(a)] and scene.state("a") == set()
    scene.registry.set_state(b, AdapterState.READY)  # and not told
    twin = scene.registry.add("b", "/new", AdapterState.READY)
    assert twin is not None
    scene.begin(b, twin)
    assert AdapterChanged(0, "b") in scene.told()
    assert scene.turn() == [DropAdapter(b)] and scene.id_of("b") == twin


def test_a_successor_of_the_worker_is_told_to_read_again(scene: Scene) -> None:
    a = scene.ready("a")
    scene.load("b")
    scene.told()
    scene.adapters.meet_worker(WORKER + 1, [])
    assert scene.told() == [ReadAdapter(scene.id_of("b"), "/p")]
    scene.read(scene.id_of("b"))  # the dead one's word
    assert scene.state("b") == {AdapterState.LOADING}
    scene.wait(a)
    assert scene.start() is None and scene.told() == [ReadAdapter(a, "/p")]


def test_who_waits_for_one_that_cannot_be_read_any_more_is_told(scene: Scene) -> None:
    a = scene.ready("a")
    scene.adapters.meet_worker(WORKER + 1, [])
    scene.wait(a)
    assert scene.start() is None
    scene.adapters.has_read(AdapterRead(WORKER + 1, 0, a, "there is no folder"))
    assert scene.adapters.lost == [a] and scene.state("a") == {AdapterState.READY}


def test_another_engine_reads_what_the_first_one_has_written(scene: Scene) -> None:
    """Its own worker has an adapter only where a sequence wants it there."""
    other = Scene(first=scene)
    assert scene.told() and not other.told()
    scene.load("a")
    adapter = scene.id_of("a")
    other.begin()
    assert not other.told(), "the first one's worker tries it"
    scene.read(adapter)
    other.wait(adapter)
    assert other.start() is None and other.told() == [ReadAdapter(adapter, "/p")]
    other.read(adapter)
    assert not other.told(), "frontends know it"
    assert other.start() is not None and other.turn() == []
    found = scene.registry.by_id(adapter)
    assert found is not None and (found.running, found.waiting) == (1, 0)


def test_an_adapter_is_unloaded_when_no_engine_has_it(scene: Scene) -> None:
    other = Scene(first=scene)
    adapter = scene.ready("a")
    ref = scene.table.open_slot(0, msgspec.msgpack.encode(Generation(Sampling(0), adapter=adapter)), 1)
    other.wait(adapter)
    other.start()
    other.told()
    other.read(adapter)
    sequence = other.start()
    assert sequence is not None
    scene.adapters.unload(UnloadAdapter(1 << 32, "a"))
    scene.turn()
    assert other.turn() == [] and scene.state("a") == {AdapterState.UNLOADING}, "the slot has it"
    scene.table.set_finish(ref, 1)
    assert scene.turn() == [] and scene.state("a") == {AdapterState.UNLOADING}, "it runs there"
    other.end(sequence)
    assert other.turn() == [], "it may be wanted there once more"
    assert DropAdapter(adapter) in scene.turn() and scene.state("a") == set()
    assert other.turn() == [DropAdapter(adapter)]


def test_what_a_dead_scheduler_has_counted_holds_nothing(scene: Scene) -> None:
    """Its sequences may be in another engine now."""
    other = Scene(first=scene)
    adapter = scene.ready("a")
    other.wait(adapter)
    other.turn()
    scene.adapters.unload(UnloadAdapter(1 << 32, "a"))
    scene.turn()
    assert scene.state("a") == {AdapterState.UNLOADING}
    other.begin()
    assert DropAdapter(adapter) in scene.turn() and scene.state("a") == set()


def test_one_that_another_engine_cannot_read_ends_who_waits_for_it_there(scene: Scene) -> None:
    other = Scene(first=scene)
    adapter = scene.ready("a")
    other.wait(adapter)
    other.start()
    other.told()
    other.read(adapter, "the folder is gone")
    assert other.told() == [DropAdapter(adapter)] and other.adapters.lost == [adapter]
    assert scene.state("a") == {AdapterState.READY}


def test_files_that_are_others_by_now_are_another_load(scene: Scene) -> None:
    """Who has not run goes over to it, without the hashes of the old one; who has is ended."""
    scene.load("a")
    old = scene.id_of("a")
    scene.adapters.has_read(AdapterRead(WORKER, 0, old, stamp=11))
    scene.told()
    begun, fresh, other = scene.wait(old), scene.wait(old), scene.wait(scene.id_of("given"))
    begun.has_run = True
    scene.begin()  # and a worker that has none in memory
    scene.told()
    assert scene.start() is None
    assert ReadAdapter(old, "/p", 11) in scene.told()
    scene.adapters.has_read(AdapterRead(WORKER, 0, old, "others", changed=True))
    new = scene.id_of("a")
    assert new != old and DropAdapter(old) in (told := scene.told()) and ReadAdapter(new, "/p") in told
    assert scene.turn() == [] and scene.start() is None, "both wait"
    scene.adapters.has_read(AdapterRead(WORKER, 0, new, stamp=12))
    scene.turn()
    assert (fresh.adapter, fresh.cacheable, other.adapter) == (new, False, scene.id_of("given"))
    assert begun.adapter == old and scene.adapters.lost == [old]
    assert scene.start() is fresh
    assert (found := scene.registry.find("a")) is not None and (found.id, found.stamp) == (new, 12)


def test_files_that_are_others_by_now_are_no_load_of_a_server_elsewhere(scene: Scene) -> None:
    """Nobody is given them under the name of the old ones; that is over once nobody waits for it."""
    old = scene.ready("a")
    fresh = scene.wait(old)
    scene.begin()
    scene.adapters.replaces = False
    assert scene.start() is None
    scene.told()
    scene.adapters.has_read(AdapterRead(WORKER, 0, old, "others", changed=True))
    assert scene.told() == [DropAdapter(old)]
    assert (scene.adapters.lost, scene.state("a"), fresh.adapter) == ([old], {AdapterState.UNLOADING}, old)
    assert scene.registry.find("a") is None
    scene.sequences.clear()
    scene.turn()
    scene.told()
    assert scene.state("a") == set()


def test_a_load_that_cannot_take_the_place_of_another_ends_who_waits(scene: Scene) -> None:
    old = scene.ready("a")
    fresh = scene.wait(old)
    scene.begin()
    assert scene.start() is None
    scene.adapters.has_read(AdapterRead(WORKER, 0, old, "others", changed=True))
    scene.read(scene.id_of("a"), "half a file")
    scene.told()
    scene.turn()
    assert scene.adapters.lost == [old] and fresh.adapter == old
    assert scene.state("a") == {AdapterState.READY}, "the next request looks again"


def test_members_of_a_group_read_the_same_files() -> None:
    scene = Scene(workers=2)
    scene.load("a")
    adapter = scene.id_of("a")
    scene.told()
    scene.adapters.has_read(AdapterRead(WORKER, 0, adapter, stamp=11))
    scene.adapters.has_read(AdapterRead(WORKER, 1, adapter, stamp=12))
    assert [one.status for one in scene.told() if isinstance(one, AdapterChanged)] == [400]
    assert scene.state("a") == set()
    scene.segment.close()


def test_another_engine_leaves_the_new_load_to_the_first(scene: Scene) -> None:
    old = scene.ready("a")
    second = Scene(first=scene)
    fresh = second.wait(old)
    assert second.start() is None
    second.told()
    second.adapters.has_read(AdapterRead(WORKER, 0, old, "others", changed=True))
    assert AdapterReplaced(old) in second.told() and second.turn() == []
    scene.adapters.replace(old)
    new = scene.id_of("a")
    scene.read(new)
    second.turn()
    assert fresh.adapter == new != old
