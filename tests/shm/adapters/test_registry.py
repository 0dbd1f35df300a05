"""The registry of adapters: what its writer stores, anybody reads; a load is never taken for another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorserve.shm.adapters.registry import (
    ENTRIES,
    AdapterRegistry,
    AdapterRegistryWriter,
    AdapterState,
    RegisteredAdapter,
    registry_bytes,
    too_long,
)
from actorserve.shm.segment import Segment


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(registry_bytes(), "test")
    yield made
    made.close()


def test_a_load_from_its_beginning_to_its_end(segment: Segment) -> None:
    writer, reader = AdapterRegistryWriter(segment, 0), AdapterRegistry(segment, 0)
    assert not reader.all() and not reader.seeded
    first = writer.add("höher", "/a/b")
    assert first is not None and reader.find("höher") is None
    assert reader.by_id(first) == RegisteredAdapter(first, "höher", "/a/b", AdapterState.LOADING)
    writer.set_state(first, AdapterState.READY)
    writer.count(first, 2, 5)
    found = reader.find("höher")
    assert found is not None and (found.running, found.waiting) == (2, 5)
    writer.set_state(first, AdapterState.UNLOADING)
    assert reader.find("höher") is None and reader.by_id(first) is not None
    writer.set_state(first, AdapterState.FREE)
    assert reader.by_id(first) is None and not reader.all()
    second = writer.add("höher", "/c")
    assert second is not None and second != first and reader.by_id(first) is None


def test_of_two_of_a_name_the_newest_that_is_ready_counts(segment: Segment) -> None:
    writer = AdapterRegistryWriter(segment, 0)
    old, new = (writer.add("a", path, AdapterState.READY) for path in ("/old", "/new"))
    assert old is not None and new is not None
    assert (found := writer.find("a")) is not None and found.id == new
    writer.set_state(new, AdapterState.LOADING)
    assert (found := writer.find("a")) is not None and found.id == old


def test_there_is_room_for_so_many(segment: Segment) -> None:
    writer = AdapterRegistryWriter(segment, 0)
    ids = [writer.add(f"a{number}", "/p") for number in range(ENTRIES)]
    assert None not in ids and len(set(ids)) == ENTRIES
    assert writer.add("more", "/p") is None
    assert ids[7] is not None
    writer.set_state(ids[7], AdapterState.FREE)
    assert writer.add("more", "/p") not in ids
    assert too_long("a" * 257, "") and too_long("", "a" * 5000) and not too_long("a" * 256, "b" * 4096)
