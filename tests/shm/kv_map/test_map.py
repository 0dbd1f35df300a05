"""The KV map: what a successor reads is what was stored last, whole or not at all."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pytest

from actorserve.shm.kv_map import map as kv_map
from actorserve.shm.kv_map.map import KVMap, kv_map_bytes
from actorserve.shm.table.table import make_ref

from ..aborting import every_abort

SLOTS, LONGEST, BLOCKS = 3, 5, 11
SHAPE = (SLOTS, LONGEST, BLOCKS)
OFFSET = 64
REF = make_ref(7, 1)
KEY = bytes(range(16))


class Scene:
    """A map between zeroed neighbours, of worker 3; another view of it is what a successor sees."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, OFFSET + kv_map_bytes(*SHAPE) + 64)
        self.map = KVMap(self.memory, OFFSET, *SHAPE)
        self.map.begin(3, BLOCKS)

    def seen(self) -> KVMap:
        return KVMap(self.memory, OFFSET, *SHAPE)

    def held(self) -> tuple[list[int], int | None] | None:
        """(blocks, computed) of REF as a successor sees it."""
        seen = self.seen()
        return (seen.held(REF).tolist(), seen.computed(REF)) if REF in seen.holders() else None


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_zeroed_memory_is_of_no_worker() -> None:
    fresh = KVMap.private(*SHAPE)
    assert not fresh.describes(0, 0) and not fresh.describes(1, BLOCKS)
    assert fresh.holders() == [] and fresh.cached() == {}


def test_whose_memory(scene: Scene) -> None:
    assert scene.seen().describes(3, BLOCKS)
    assert not scene.seen().describes(4, BLOCKS) and not scene.seen().describes(3, BLOCKS - 1)
    scene.map.disown()
    assert not scene.seen().describes(3, BLOCKS)
    with pytest.raises(ValueError, match="12"):
        scene.map.begin(3, BLOCKS + 1)


def test_takeovers_are_counted_until_it_is_proven(scene: Scene) -> None:
    assert [scene.seen().begin_takeover() for _ in range(3)] == [1, 2, 3]
    scene.map.prove()
    assert scene.seen().begin_takeover() == 1
    scene.map.begin(3, BLOCKS)
    assert scene.seen().begin_takeover() == 1


def test_all_places_are_apart(scene: Scene) -> None:
    """Every slot and block filled: nothing writes over another, nor beyond the region."""
    refs = [make_ref(0x7FFFFFFF - slot, slot) for slot in range(SLOTS)]
    for slot, ref in enumerate(refs):
        scene.map.hold(ref, [slot + index for index in range(LONGEST)], 100 + slot)
        scene.map.set_announced(ref)
    keys = {block: bytes([block]) * 16 for block in range(BLOCKS)}
    for block, key in keys.items():
        scene.map.cache(block, key)
    seen = scene.seen()
    assert seen.describes(3, BLOCKS) and seen.holders() == refs and seen.cached() == keys
    for slot, ref in enumerate(refs):
        assert (
            seen.is_announced(ref)
            and seen.held(ref).tolist() == list(range(slot, slot + LONGEST))
            and seen.computed(ref) == 100 + slot
        )
    assert not any(scene.memory[:OFFSET]) and not any(scene.memory[OFFSET + kv_map_bytes(*SHAPE) :])


def test_a_life_of_a_slot(scene: Scene) -> None:
    scene.map.hold(REF, [4, 9], 3)
    assert scene.held() == ([4, 9], 3)
    scene.map.grow(REF, 2, 6)
    scene.map.confirm(np.array([1]), np.array([7]), np.array([17]))
    assert scene.held() == ([4, 9, 6], 17)
    scene.map.release(1)
    assert scene.held() is None
    later = make_ref(8, 1)
    scene.map._held[1] = later >> 32 << 32 | 1
    assert scene.seen().holders() == [later] and scene.seen().computed(later) is None, "that is of an earlier use"


def test_ends_are_told_for_one_use_of_a_slot(scene: Scene) -> None:
    assert not scene.seen().is_announced(REF)
    scene.map.set_announced(REF)
    assert (
        scene.seen().is_announced(REF)
        and not scene.seen().is_announced(make_ref(8, 1))
        and not scene.seen().is_announced(make_ref(7, 2))
    )
    scene.map.begin(4, BLOCKS)
    assert scene.seen().is_announced(REF), "that is no matter of a worker"


def test_a_table_longer_than_can_be_names_nothing(scene: Scene) -> None:
    scene.map.hold(REF, [1] * LONGEST, 0)
    scene.map._held[1] += 1
    assert scene.seen().holders() == [REF] and len(scene.seen().held(REF)) == 0


def test_cached_blocks(scene: Scene) -> None:
    scene.map.cache(2, KEY)
    scene.map.cache(5, bytes(16))
    assert scene.seen().cached() == {2: KEY, 5: bytes(16)}
    scene.map.uncache(2)
    assert scene.seen().cached() == {5: bytes(16)}


def test_a_reset_leaves_nothing_to_be_found(scene: Scene) -> None:
    other = make_ref(4, 2)
    scene.map.hold(REF, [4, 9], 3)
    scene.map.cache(2, KEY)
    assert scene.map.reset_cache() == 1
    assert scene.seen().cached() == {} and scene.held() == ([4, 9], 3)
    assert scene.seen().is_stale(REF) and not scene.seen().is_stale(make_ref(8, 1)), "a later use of the slot is not"
    scene.map.hold(other, [5], 0)
    assert not scene.seen().is_stale(other)
    scene.map.release(1)
    scene.map.hold(REF, [6], 0)
    assert not scene.seen().is_stale(REF), "it was preempted, and all that it holds now was computed since"


def outcomes(
    make: Callable[[], Scene], act: Callable[[Scene], object], look: Callable[[Scene], object]
) -> list[object]:
    """What a successor may see, in the order of the deaths."""
    found: list[object] = []
    for scene, _ in every_abort(make, lambda s: lambda: act(s), (kv_map,), minimum=5):
        if (state := look(scene)) not in found:
            found.append(state)
    return found


def used() -> Scene:
    """The slot held more blocks and more tokens before, in the same use of it (the sequence was preempted)."""
    scene = Scene()
    scene.map.hold(REF, [1, 2, 3], 24)
    scene.map.release(1)
    return scene


def test_death_while_blocks_are_taken() -> None:
    assert outcomes(used, lambda s: s.map.hold(REF, [5, 6], 8), Scene.held) == [None, ([5, 6], 8)]


def test_death_while_a_block_is_added() -> None:
    def holding() -> Scene:
        scene = used()
        scene.map.hold(REF, [5, 6], 8)
        return scene

    assert outcomes(holding, lambda s: s.map.grow(REF, 2, 9), Scene.held) == [([5, 6], 8), ([5, 6, 9], 8)]


def test_death_while_a_block_is_cached() -> None:
    def once_cached() -> Scene:
        scene = Scene()
        scene.map.cache(2, bytes(16))
        scene.map.uncache(2)
        return scene

    assert outcomes(once_cached, lambda s: s.map.cache(2, KEY), lambda s: s.seen().cached()) == [{}, {2: KEY}]


def test_death_while_another_worker_begins() -> None:
    def full() -> Scene:
        scene = Scene()
        scene.map.hold(REF, [5, 6], 8)
        scene.map.cache(2, KEY)
        return scene

    def look(scene: Scene) -> object:
        seen = scene.seen()
        contents = (scene.held(), seen.cached())
        return [(worker, contents) for worker in (3, 4) if seen.describes(worker, BLOCKS)]

    found = outcomes(full, lambda s: s.map.begin(4, BLOCKS), look)
    assert found == [[(3, (([5, 6], 8), {2: KEY}))], [], [(4, (None, {}))]]


def test_death_in_a_reset() -> None:
    """Nobody who holds may offer again what cannot be found any more."""

    def make() -> Scene:
        scene = Scene()
        scene.map.hold(REF, [4, 9], 3)
        scene.map.cache(4, KEY)
        return scene

    found = outcomes(make, lambda s: s.map.reset_cache(), lambda s: (bool(s.seen().cached()), s.seen().is_stale(REF)))
    assert found == [(True, False), (True, True), (False, True)]
