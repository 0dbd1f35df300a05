"""Files of an adapter that are others by now: a new load takes the place of theirs."""

from __future__ import annotations

from actorserve.actors.protocol.topics.adapters import (
    AdapterChanged,
    AdapterRead,
    AdapterReplaced,
    DropAdapter,
    ReadAdapter,
)
from actorserve.shm.adapters.registry import AdapterState
from tests.scheduler.lora.scene import WORKER, Scene


def test_files_that_are_others_by_now_are_another_load(scene: Scene) -> None:
    """Who has not run goes over to it, without the hashes of the old one, and its slot says so; who has is ended."""
    scene.load("a")
    old = scene.id_of("a")
    scene.adapters.has_read(AdapterRead(WORKER, 0, old, stamp=11))
    scene.told()
    begun, fresh, other = scene.wait(old), scene.wait(old), scene.wait(scene.id_of("given"))
    begun.has_run, fresh.hashes = True, [b"of the old one"]
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
    assert (fresh.adapter, fresh.hashes, other.adapter) == (new, [], scene.id_of("given"))
    assert [scene.table.load(one.ref) for one in (fresh, begun, other)] == [new, 0, 0]
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
