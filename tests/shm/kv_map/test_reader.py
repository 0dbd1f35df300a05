"""Who reads blocks that are cached knows whether they have been all the time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actorserve.shm.kv_map import map as module
from actorserve.shm.kv_map.map import KVMap, kv_map_bytes
from actorserve.shm.kv_map.reader import CachedBlocks
from actorserve.shm.segment import Segment

SIZES = (4, 8, 16, 0, 0)
KEY, OTHER = bytes(range(16)), bytes(16)


def make() -> tuple[KVMap, CachedBlocks]:
    segment = Segment.create(kv_map_bytes(*SIZES), "test")
    return KVMap(segment.map, 0, *SIZES), CachedBlocks(segment, 0, SIZES)


def test_a_block_that_was_given_away_holds_no_more() -> None:
    kv, reader = make()
    kv.begin(3, 16)
    assert (reader.worker, reader.blocks, reader.look(5)) == (3, 16, None)
    kv.cache(5, KEY)
    found = reader.look(5)
    assert found is not None and found[1] == KEY and reader.holds(5, found[0])
    kv.uncache(5)
    assert reader.look(5) is None and not reader.holds(5, found[0])
    kv.cache(5, KEY)
    assert not reader.holds(5, found[0]), "the same key again is not the same contents all the time"
    again = reader.look(5)
    assert again is not None and reader.holds(5, again[0])
    kv.reset_cache()
    kv.cache(5, KEY)
    assert not reader.holds(5, again[0])


@pytest.mark.parametrize("ends", [lambda kv: kv.uncache(5), lambda kv: kv.reset_cache()], ids=["uncache", "reset"])
def test_a_look_between_the_stores_of_an_end_holds_no_later_contents(
    monkeypatch: pytest.MonkeyPatch, ends: Callable[[KVMap], object]
) -> None:
    """The version is larger already, and the flag still there."""
    kv, reader = make()
    kv.begin(3, 16)
    kv.cache(5, KEY)
    between: list[tuple[int, bytes] | None] = []
    with monkeypatch.context() as patched:
        patched.setattr(module, "store_fence", lambda: between.append(reader.look(5)))
        ends(kv)
    assert between[0] is not None and between[0][1] == KEY
    assert reader.changed() == []
    kv.cache(5, OTHER)
    assert not reader.holds(5, between[0][0]), "what was read since may be the other's"
    assert reader.changed() == [5]


def test_what_has_changed_is_told_once() -> None:
    kv, reader = make()
    kv.begin(1, 16)
    assert reader.changed() == []
    kv.cache(2, KEY)
    kv.cache(7, OTHER)
    assert reader.changed() == [2, 7] and reader.changed() == []
    reader.again(7)
    assert reader.changed() == [7]
    kv.uncache(2)
    assert reader.changed() == [2]
    kv.cache(2, KEY)
    kv.uncache(7)
    kv.cache(7, OTHER)
    assert reader.changed() == [2, 7], "also where it was something else in between"
