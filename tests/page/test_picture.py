"""KV memory as cells: what the scheduler's map says, read without disturbing it."""

from __future__ import annotations

import pytest

from actorserve.actors.frontend.observability.dashboard import CELLS, cells
from actorserve.shm.kv_map.map import KVMap, kv_map_bytes
from actorserve.shm.kv_map.view import KVView
from actorserve.shm.segment import Segment

SLOTS, SEQUENCE_BLOCKS, MOST, OFFSET = 5, 7, 40, 4096
KEY = b"k" * 16


@pytest.fixture
def pair() -> tuple[KVMap, KVView]:
    """The map as the scheduler has it, and the view of another."""
    segment = Segment.create(OFFSET + kv_map_bytes(SLOTS, SEQUENCE_BLOCKS, MOST), "picture")
    sizes = (SLOTS, SEQUENCE_BLOCKS, MOST)
    return KVMap(segment.map, OFFSET, *sizes), KVView(segment, OFFSET, *sizes)


def blocks(flags: bytes) -> list[int]:
    assert set(flags) <= {0, 1}
    return [block for block, flag in enumerate(flags) if flag]


def test_without_a_worker_there_is_nothing(pair: tuple[KVMap, KVView]) -> None:
    kv_map, view = pair
    assert view.look() == (b"", b"")
    kv_map.begin(1, 30)
    assert [len(flags) for flags in view.look()] == [30, 30]
    kv_map.disown()
    assert view.look() == (b"", b"")


def test_it_says_what_the_map_says(pair: tuple[KVMap, KVView]) -> None:
    kv_map, view = pair
    kv_map.begin(3, 30)
    kv_map.hold(9 << 32 | 4, [0, 29, 7], 5)
    kv_map.hold(2 << 32 | 0, [7, 8], 0)
    kv_map.grow(2 << 32 | 0, 2, 11)
    kv_map.cache(7, KEY)
    kv_map.cache(29, KEY)
    held, cached = view.look()
    assert blocks(held) == [0, 7, 8, 11, 29] and blocks(cached) == [7, 29]
    kv_map.release(4)
    kv_map.uncache(29)
    held, cached = view.look()
    assert blocks(held) == [7, 8, 11] and blocks(cached) == [7]


def test_how_far_a_sequence_has_come(pair: tuple[KVMap, KVView]) -> None:
    kv_map, view = pair
    kv_map.begin(3, 30)
    kv_map.hold(9 << 32 | 4, [0, 29, 7], 5)
    assert view.computed(9 << 32 | 4) == 5 and view.computed(8 << 32 | 4) == 0 == view.computed(9 << 32 | 3)


def test_what_cannot_be_is_left_out(pair: tuple[KVMap, KVView]) -> None:
    """A picture is no place to fall: a table that is being changed may name anything."""
    kv_map, view = pair
    kv_map.begin(3, 10)
    kv_map.hold(1 << 32 | 2, [3, 30, -1], 0)
    kv_map._held[1] = 1 << 32 | SEQUENCE_BLOCKS + 1
    assert blocks(view.look()[0]) == [3]
    kv_map._header[1] = MOST + 1
    assert view.look() == (b"", b"")


@pytest.mark.parametrize("offset", [-8, 4])
def test_an_offset_that_cannot_be(offset: int) -> None:
    with pytest.raises(ValueError, match="no KV map can lie"):
        KVView(Segment.create(8192, "picture"), offset, 1, 1, 1)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (b"", ""),
        (b"\x00\x01\x01", "0ff"),
        (b"\x01" * CELLS, "f" * CELLS),
        (b"\x01" * (CELLS + 1), "f" * (CELLS // 2 + 1)),
        (b"\x01\x00" * CELLS, "8" * CELLS),
        (b"\x00" * 31 + b"\x01" + bytes(32 * CELLS - 32), "1" + "0" * (CELLS - 1)),
    ],
)
def test_cells(flags: bytes, expected: str) -> None:
    """One of many is seen, all are only all."""
    assert cells(flags) == expected
    if flags and b"\x00" in flags and len(flags) > CELLS:
        assert "f" not in cells(flags)
