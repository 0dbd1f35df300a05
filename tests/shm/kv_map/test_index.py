"""What others see of the blocks that an engine has cached: nothing that is not there, and nearly all that is."""

from __future__ import annotations

import random

import numpy as np
import pytest

from actorserve.shm.kv_map.index import CachedPrefixes, group_of
from actorserve.shm.kv_map.layout import ENTRIES
from actorserve.shm.kv_map.map import KVMap, kv_map_bytes
from actorserve.shm.segment import Segment

OFFSET = 4096
GROUPS = 64
SIZES = 4, 8, 64, 0, GROUPS


class Scene:
    def __init__(self) -> None:
        self.segment = Segment.create(OFFSET + kv_map_bytes(*SIZES), "index")
        self.map = KVMap(self.segment.map, OFFSET, *SIZES)
        self.map.begin(1, 64)
        self.seen = CachedPrefixes(self.segment, OFFSET, SIZES)


def key_of(number: int, group: int | None = None) -> bytes:
    drawn = bytearray(random.Random(number).randbytes(16))
    if group is not None:
        drawn[:8] = (int.from_bytes(drawn[:8], "little") // GROUPS * GROUPS + group).to_bytes(8, "little")
    return bytes(drawn)


def test_what_is_cached_is_found_until_it_is_not() -> None:
    scene = Scene()
    keys = [key_of(number) for number in range(3)]
    for block, key in enumerate(keys):
        assert key not in scene.seen
        scene.map.cache(block, key)
        assert key in scene.seen
    scene.map.uncache(1)
    assert [key in scene.seen for key in keys] == [True, False, True]
    scene.map.cache(1, key_of(9))
    assert key_of(9) in scene.seen and keys[1] not in scene.seen
    scene.map.reset_cache()
    assert not any(key in scene.seen for key in keys)


@pytest.mark.parametrize("blocks", [1, 64])
def test_a_new_worker_has_nothing(blocks: int) -> None:
    scene = Scene()
    scene.map.cache(3, key_of(1))
    scene.map.begin(2, blocks)
    assert key_of(1) not in scene.seen


def test_in_a_full_group_the_newest_are_found_and_places_are_used_again() -> None:
    scene = Scene()
    keys = [key_of(number, group=5) for number in range(ENTRIES + 1)]
    assert {group_of(key, GROUPS) for key in keys} == {5}
    for block, key in enumerate(keys):
        scene.map.cache(block, key)
    assert keys[-1] in scene.seen and sum(key in scene.seen for key in keys) == ENTRIES
    gone = next(block for block, key in enumerate(keys) if key in scene.seen)
    scene.map.uncache(gone)
    scene.map.cache(gone, key_of(77, group=6))
    newest = key_of(99, group=5)
    scene.map.cache(40, newest)
    assert newest in scene.seen and sum(key in scene.seen for key in [*keys, newest]) == ENTRIES


def test_blocks_that_come_and_go_at_random() -> None:
    """No false hit ever; of a map that is full nearly all are found."""
    scene, rng, cached = Scene(), random.Random(3), dict[int, bytes]()
    gone: list[bytes] = []
    for number in range(3000):
        block = rng.randrange(64)
        if block in cached:
            scene.map.uncache(block)
            gone.append(cached.pop(block))
        cached[block] = key_of(number)
        scene.map.cache(block, cached[block])
        assert cached[block] in scene.seen
    assert not any(key in scene.seen for key in gone[-500:])
    assert np.mean([key in scene.seen for key in cached.values()]) > 0.9
