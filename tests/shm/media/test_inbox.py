"""The inbox of pictures: room for records, whose they are, and their memory."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from actorserve.shm.layout import PAGE, make_ref
from actorserve.shm.media import inbox
from actorserve.shm.media.inbox import InboxRegion, MediaInbox

from ..aborting import every_abort

ROOM = 16 * PAGE
OLD, NEW = make_ref(1, 5), make_ref(2, 5)


class Scene:
    def __init__(self) -> None:
        self.fd = MediaInbox.create(2, ROOM)
        self.region = InboxRegion(self.fd, 2, ROOM, 1)
        self.reader = MediaInbox(self.fd, 2, ROOM)

    def put(self, owner: int, data: bytes) -> int:
        place = self.region.reserve(len(data))
        assert place is not None
        self.region.put(owner, place, [data[:3], data[3:]])
        return place


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_record_is_read_by_its_owner(scene: Scene) -> None:
    place = scene.put(OLD, b"abcdef")
    assert scene.reader.read(OLD, place, 0, 6) == b"abcdef" and scene.reader.read(OLD, place, 2, 3) == b"cde"
    assert scene.reader.read(NEW, place, 0, 6) is None
    for odd in (place + 1, -64, 2 * ROOM):
        assert scene.reader.read(OLD, odd, 0, 6) is None
    assert scene.reader.read(OLD, place, 0, 2 * ROOM) is None


def test_room_is_bounded_and_comes_back(scene: Scene) -> None:
    places = [scene.put(OLD, bytes(4 * PAGE - 64)) for _ in range(4)]
    assert len({*places}) == 4 and all(ROOM <= place < 2 * ROOM for place in places)
    assert scene.region.reserve(1) is None and scene.region.used == ROOM
    taken = os.fstat(scene.fd).st_blocks
    scene.region.free(places[1])
    assert os.fstat(scene.fd).st_blocks < taken
    assert scene.reader.read(OLD, places[1], 0, 3) is None
    assert scene.put(NEW, b"new") == places[1]
    assert scene.region.reserve(4 * PAGE - 64) is None and scene.region.reserve(3 * PAGE - 64) is not None
    assert InboxRegion(scene.fd, 2, ROOM, 1).used == 0, "a successor begins with an empty one"


def test_the_frontend_dies_between_any_two_stores() -> None:
    """A reader finds the older record whole, the new one whole, or none."""
    found = set()

    def acting(scene: Scene) -> Callable[[], object]:
        place = scene.put(OLD, b"older")
        return lambda: scene.region.put(NEW, place, [b"new", b"er"])

    for scene, _ in every_abort(Scene, acting, (inbox,)):
        old, new = (scene.reader.read(owner, ROOM, 0, 5) for owner in (OLD, NEW))
        found |= {old, new}
        assert old in (None, b"older") and new in (None, b"newer")
        os.close(scene.fd)
    assert found == {None, b"older", b"newer"}


@pytest.mark.usefixtures("keeps_pages")
def test_a_record_is_nobodys_where_its_memory_stays(scene: Scene) -> None:
    """One that begins before it lies over its bytes, and not over the word that says whose they are."""
    first, second = scene.put(OLD, b"first"), scene.put(OLD, b"second")
    for place in (first, second):
        scene.region.free(place)
        assert scene.reader.read(OLD, place, 0, 5) is None
    assert scene.put(NEW, bytes(PAGE)) == first
    assert scene.reader.read(OLD, second, 0, 5) is None and scene.reader.read(NEW, first, 0, PAGE) == bytes(PAGE)
