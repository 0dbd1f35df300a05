"""Who may start with which adapter: what the worker has in memory, what it reads and what gives way."""

from __future__ import annotations

from actorserve.actors.protocol.topics.adapters import AdapterChanged, DropAdapter, ReadAdapter
from actorserve.shm.adapters.registry import AdapterState
from tests.scheduler.lora.scene import WORKER, Scene


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
