"""The arena of pictures: whose they are, what a death of each writer leaves, and that nothing is given away or kept."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from actorserve.actors.protocol.media import MediaItem, MediaTensor
from actorserve.shm.layout import make_ref
from actorserve.shm.media import arena, entries
from actorserve.shm.media.arena import CHUNK, ENTRIES, ArenaSizes, MediaArena
from actorserve.shm.media.entries import Entry, MediaEntries, TooLarge

from ..aborting import every_state

SIZES = ArenaSizes(slots=3, parts=2, part_bytes=6 * CHUNK)
OLD, NEW, OTHER = make_ref(4, 1), make_ref(5, 1), make_ref(1, 2)


def numbers(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.float32).reshape(2, -1)


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


class Scene:
    """An arena and the entries of its second part, with uses of slots of which those in `live` run."""

    def __init__(self) -> None:
        self.fd = MediaArena.create(SIZES)
        self.live: set[int] = set()
        self.arena = MediaArena(self.fd, SIZES, MediaItem)
        self.entries = self.successor()
        self.now = 0

    def successor(self) -> MediaEntries:
        return MediaEntries(MediaArena(self.fd, SIZES, MediaItem), 1, self.live.__contains__)

    def make(self, number: int, chunks: int = 1) -> Entry | None:
        self.now += 1
        array = numbers(chunks * CHUNK // 4 - 1024, number)

        def describe(offsets: list[int]) -> bytes:
            return msgspec.msgpack.encode(MediaTensor("pixels", "float32", list(array.shape), offsets[0]))

        return self.entries.make(digest(number), [array], describe, self.now)

    def seen(self, entry: Entry) -> np.ndarray:
        """What another process sees of an entry."""
        tensor = msgspec.msgpack.decode(self.entries.description(entry), type=MediaTensor)
        return MediaArena(self.fd, SIZES).array(tensor)

    def survives(self) -> bytes:
        """All that a death leaves."""
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)

    def close(self) -> None:
        os.close(self.fd)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def made(scene: Scene, number: int, chunks: int = 1) -> Entry:
    entry = scene.make(number, chunks)
    assert entry is not None
    return entry


def test_another_process_sees_what_was_made(scene: Scene) -> None:
    entry = made(scene, 7)
    found = scene.seen(entry)
    assert np.array_equal(found, numbers(found.size, 7)) and not found.flags.writeable
    items = [MediaItem("image", digest(7), 3, 9, [MediaTensor("pixels", "float32", [2], entry.offset)])]
    scene.arena.write_items(OLD, items)
    other = MediaArena(scene.fd, SIZES, MediaItem)
    assert other.items(1, 4) == items
    assert other.items(1, 5) == other.items(2, 1) == []
    with pytest.raises(IndexError):
        other.items(3, 1)


def test_what_is_held_is_not_given_away_and_what_is_not_goes_by_its_age(scene: Scene) -> None:
    first, second, third = made(scene, 1, 2), made(scene, 2, 2), made(scene, 3, 2)
    scene.live.add(OLD)
    scene.entries.hold([OLD], [second])
    assert scene.entries.find(digest(1), 100) is not None  # the first was wanted last
    made(scene, 4, 2)
    assert scene.entries.find(digest(3), 101) is None and scene.entries.find(digest(2), 101) is not None
    made(scene, 5, 2)
    assert scene.make(6, 6) is None, "what runs has some of it"
    assert scene.entries.find(digest(2), 102) is not None
    assert first.offset != second.offset != third.offset
    scene.live.clear()
    assert made(scene, 6, 6) is not None
    with pytest.raises(TooLarge):
        scene.make(7, 7)


def test_whoever_reads_too_late_is_told(scene: Scene) -> None:
    """A use that was cancelled is over while its pixels are read: they are another's by then."""
    scene.live.add(OLD)
    scene.entries.hold([OLD], [made(scene, 1, 6)])
    scene.arena.write_items(OLD, [])
    assert scene.arena.intact(1, 4)
    scene.live.clear()
    assert scene.arena.intact(1, 4)
    made(scene, 2, 6)
    assert not scene.arena.intact(1, 4)


def test_whoever_reads_while_the_next_use_of_the_slot_has_entries_and_no_items_yet_is_told(scene: Scene) -> None:
    scene.live.add(OLD)
    scene.entries.hold([OLD], [made(scene, 1, 6)])
    scene.arena.write_items(OLD, [])
    scene.live.clear()
    scene.live.add(NEW)
    scene.entries.hold([NEW], [made(scene, 2, 6)])
    assert not scene.arena.intact(1, 4)


def test_whoever_reads_while_a_successor_does_again_what_was_held_is_not_disturbed() -> None:
    """The media actor had died before it said that it was done."""

    def make() -> Scene:
        scene = Scene()
        scene.live.add(OLD)
        scene.entries.hold([OLD], [made(scene, 1, 2)])
        scene.arena.write_items(OLD, [])
        return scene

    def acting(scene: Scene) -> Callable[[], object]:
        after = scene.successor()
        found = after.find(digest(1), 9)
        assert found is not None
        return lambda: after.hold([OLD], [found])

    for scene, _ in every_state(make, acting, (entries, arena), Scene.survives, 0):
        assert scene.arena.intact(1, 4)
        scene.close()


@pytest.mark.usefixtures("keeps_pages")
def test_what_is_forgotten_makes_room_where_memory_stays(scene: Scene) -> None:
    made(scene, 1, 6)
    assert scene.entries.forget() == 1 and scene.entries.find(digest(1), 9) is None
    entry = made(scene, 2, 6)
    assert np.array_equal(scene.seen(entry), numbers(scene.seen(entry).size, 2))


def test_reset_forgets_what_nobody_has_and_hides_the_rest(scene: Scene) -> None:
    kept, idle = made(scene, 1, 2), made(scene, 2, 2)
    scene.live.add(OTHER)
    scene.entries.hold([OTHER], [kept])
    taken = os.fstat(scene.fd).st_blocks
    assert scene.entries.forget() == 1
    assert scene.entries.find(digest(1), 9) is None and scene.entries.find(digest(2), 9) is None
    assert os.fstat(scene.fd).st_blocks < taken
    assert np.array_equal(scene.seen(kept), numbers(scene.seen(kept).size, 1))
    assert scene.successor().find(digest(1), 9) is None
    again = made(scene, 1, 2)
    assert (again.number, again.sequence) == (idle.number, idle.sequence + 2)
    scene.live.clear()
    assert made(scene, 3, 6) is not None


def test_more_entries_than_there_are_take_the_oldest() -> None:
    sizes = ArenaSizes(1, 1, CHUNK * (ENTRIES + 2))
    fd = MediaArena.create(sizes)
    own = MediaEntries(MediaArena(fd, sizes), 0, lambda ref: False)
    for number in range(ENTRIES + 2):
        assert own.make(digest(number + 1), [], lambda offsets: b"x", number) is not None
    assert len(own) == ENTRIES
    assert own.find(digest(1), 0) is own.find(digest(2), 0) is None and own.find(digest(3), 0) is not None
    os.close(fd)


def test_the_media_actor_dies_between_any_two_stores_of_an_entry() -> None:
    """Its successor has all of the older ones, the new one whole or not at all, and all the room."""
    found = set()

    def make() -> Scene:
        scene = Scene()
        made(scene, 1, 2)
        made(scene, 2, 4)
        return scene

    def acting(scene: Scene) -> Callable[[], object]:
        return lambda: scene.make(3, 4)

    for scene, _ in every_state(make, acting, (entries, arena), Scene.survives, 5):
        scene.entries = scene.successor()
        new = scene.entries.find(digest(3), 50)
        found.add(new is None)
        if new is not None:
            assert np.array_equal(scene.seen(new), numbers(scene.seen(new).size, 3))
        old = scene.entries.find(digest(2), 50)
        if old is not None:
            assert np.array_equal(scene.seen(old), numbers(scene.seen(old).size, 2))
        assert made(scene, 4, 6) is not None
        scene.close()
    assert found == {True, False}


def test_it_dies_between_any_two_stores_of_what_a_use_holds() -> None:
    """What a successor finds held was held; a use of which that is not stored is done again."""
    found = set()

    def make() -> Scene:
        scene = Scene()
        scene.live |= {OLD, OTHER}
        scene.entries.hold([OLD], [made(scene, 1, 2)])
        scene.live -= {OLD}
        scene.live |= {NEW}
        return scene

    def acting(scene: Scene) -> Callable[[], object]:
        entry = made(scene, 2, 2)
        return lambda: scene.entries.hold([NEW, OTHER], [entry])

    for scene, _ in every_state(make, acting, (entries, arena), Scene.survives, 5):
        after = scene.successor()
        wanted = [(entry.number, entry.sequence) for entry in [after.find(digest(2), 9)] if entry is not None]
        for slot, generation in ((1, 5), (2, 1)):
            held = scene.arena.holds(slot, generation)
            found.add(bool(held))
            assert held in ([], wanted)
        scene.close()
    assert found == {True, False}


def test_the_frontend_and_the_renderer_die_between_any_two_stores() -> None:
    """Nobody finds half of what they write, nor that of an earlier use."""
    items = [MediaItem("image", digest(1), 0, 2, [])]
    found = set()

    def acting(scene: Scene) -> Callable[[], object]:
        scene.arena.ask(OLD, 640)
        scene.arena.write_items(OLD, [])

        def act() -> None:
            scene.arena.ask(NEW, 128)
            scene.arena.write_items(NEW, items)

        return act

    for scene, _ in every_state(Scene, acting, (arena,), Scene.survives, 5):
        seen = MediaArena(scene.fd, SIZES, MediaItem)
        assert seen.asked(OLD) in (None, 640) and seen.asked(NEW) in (None, 128)
        assert seen.items(1, 5) in ([], items) and seen.items(1, 4) == []
        found.add(bool(seen.items(1, 5)))
        scene.close()
    assert found == {True, False}
