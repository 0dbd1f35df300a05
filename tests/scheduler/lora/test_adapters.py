"""Loads and unloads of adapters, in one engine and in several, and what a successor makes of the registry."""

from __future__ import annotations

import msgspec

from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topics.adapters import (
    AdapterChanged,
    AdapterRead,
    DropAdapter,
    ReadAdapter,
    UnloadAdapter,
)
from actorserve.shm.adapters.registry import AdapterState
from tests.scheduler.lora.scene import WORKER, Scene


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
