"""The block pool: runs, the prefix cache, eviction order, integrity under random use."""

from __future__ import annotations

import random

import pytest

from actorserve.actors.scheduler.memory.blocks import BlockPool
from actorserve.shm.kv_map.map import KVMap


def new_pool(count: int) -> BlockPool:
    return BlockPool(count, KVMap.private(1, count, count))


def test_blocks_are_adjacent() -> None:
    pool = new_pool(32)
    first = pool.allocate(5, num_spare=3)
    second = pool.allocate(5, num_spare=3)
    assert first == [0, 1, 2, 3, 4] and second == [8, 9, 10, 11, 12]
    assert pool.allocate(3, after=4) == [5, 6, 7]
    assert pool.allocate(1, after=7) == [16], "its neighbour is taken"


def test_more_than_there_is() -> None:
    pool = new_pool(4)
    assert pool.allocate(5) is None
    assert pool.allocate(4) is not None and pool.allocate(1) is None


def test_scattered_blocks_are_found() -> None:
    pool = new_pool(6)
    blocks = pool.allocate(6)
    assert blocks is not None
    pool.release([0, 2, 4])
    assert pool.allocate(3) == [0, 2, 4]


def test_cached_prefix_is_shared_and_evicted_last_used_last() -> None:
    pool = new_pool(4)
    blocks = pool.allocate(3)
    assert blocks is not None
    keys = [b"a" * 16, b"b" * 16, b"c" * 16]
    for block, key in zip(blocks, keys, strict=True):
        pool.register(block, key)
    assert pool.match(keys) == blocks and pool.match([b"x" * 16, *keys]) == []
    pool.hold(blocks)
    pool.release(blocks)
    pool.release(blocks)
    assert pool.free == 4
    assert pool.allocate(2) is not None  # the clean one, and the tail of the prefix
    assert pool.match(keys) == blocks[:2]
    pool.forget_cache()
    assert pool.match(keys) == [] and pool.free == 2
    pool.check_integrity([[b for b in range(4) if pool._refs[b]]])


def test_a_held_block_is_forgotten_too() -> None:
    pool = new_pool(4)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.register(blocks[0], b"a" * 16)
    pool.forget_cache()
    assert pool.match([b"a" * 16]) == []
    pool.check_integrity([blocks])


def test_the_first_block_of_a_prefix_stays() -> None:
    pool = new_pool(4)
    one, two = pool.allocate(1), pool.allocate(1)
    assert one and two
    pool.register(one[0], b"k" * 16)
    pool.register(two[0], b"k" * 16)
    assert pool.match([b"k" * 16]) == one
    pool.check_integrity([one, two])


@pytest.mark.parametrize("seed", range(20))
def test_random_use(seed: int) -> None:
    rng = random.Random(seed)
    pool = new_pool(24)
    held: list[list[int]] = []
    for _ in range(300):
        choice = rng.random()
        if choice < 0.4:
            blocks = pool.allocate(rng.randrange(1, 6), after=rng.choice([None, rng.randrange(24)]), num_spare=2)
            if blocks is not None:
                assert len(set(blocks)) == len(blocks)
                held.append(blocks)
        elif choice < 0.7 and held:
            pool.release(held.pop(rng.randrange(len(held))))
        elif choice < 0.85 and held:
            pool.register(rng.choice(rng.choice(held)), rng.randbytes(1) * 16)
        else:
            found = pool.match([rng.randbytes(1) * 16])
            if found:
                pool.hold(found)
                held.append(found)
        pool.check_integrity(held)
