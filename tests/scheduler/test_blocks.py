"""The block pool: runs, the prefix cache, eviction order, integrity under random use."""

from __future__ import annotations

import random

import pytest

from actorserve.actors.scheduler.blocks import BlockPool


def test_blocks_are_adjacent() -> None:
    pool = BlockPool(32)
    first = pool.allocate(5, room=3)
    second = pool.allocate(5, room=3)
    assert first == [0, 1, 2, 3, 4] and second == [8, 9, 10, 11, 12]
    assert pool.allocate(3, after=4) == [5, 6, 7]
    assert pool.allocate(1, after=7) == [16], "its neighbour is taken"


def test_more_than_there_is() -> None:
    pool = BlockPool(4)
    assert pool.allocate(5) is None
    assert pool.allocate(4) is not None and pool.allocate(1) is None


def test_scattered_blocks_are_found() -> None:
    pool = BlockPool(6)
    blocks = pool.allocate(6)
    assert blocks is not None
    pool.release([0, 2, 4])
    assert pool.allocate(3) == [0, 2, 4]


def test_cached_prefix_is_shared_and_evicted_last_used_last() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    assert blocks is not None
    keys = [b"a", b"b", b"c"]
    for block, key in zip(blocks, keys, strict=True):
        pool.register(block, key)
    assert pool.match(keys) == blocks and pool.match([b"x", *keys]) == []
    pool.hold(blocks)
    pool.release(blocks)
    pool.release(blocks)
    assert pool.free == 4
    assert pool.allocate(2) is not None  # the clean one, and the tail of the prefix
    assert pool.match(keys) == blocks[:2]
    pool.forget_cache()
    assert pool.match(keys) == [] and pool.free == 2
    pool.check_integrity([[b for b in range(4) if pool._refs[b]]])


def test_the_first_block_of_a_prefix_stays() -> None:
    pool = BlockPool(4)
    one, two = pool.allocate(1), pool.allocate(1)
    assert one and two
    pool.register(one[0], b"k")
    pool.register(two[0], b"k")
    assert pool.match([b"k"]) == one
    pool.check_integrity([one, two])


@pytest.mark.parametrize("seed", range(20))
def test_random_use(seed: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(24)
    held: list[list[int]] = []
    for _ in range(300):
        choice = rng.random()
        if choice < 0.4:
            blocks = pool.allocate(rng.randrange(1, 6), after=rng.choice([None, rng.randrange(24)]), room=2)
            if blocks is not None:
                assert len(set(blocks)) == len(blocks)
                held.append(blocks)
        elif choice < 0.7 and held:
            pool.release(held.pop(rng.randrange(len(held))))
        elif choice < 0.85 and held:
            pool.register(rng.choice(rng.choice(held)), rng.randbytes(1))
        else:
            found = pool.match([rng.randbytes(1)])
            if found:
                pool.hold(found)
                held.append(found)
        pool.check_integrity(held)
