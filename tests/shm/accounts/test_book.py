"""The text of keys that frontends read: whole, whichever store of it is the writer's last, and while it changes."""

from __future__ import annotations

from actorserve.shm.accounts import book
from actorserve.shm.accounts.book import KeyBook, book_bytes
from actorserve.shm.segment import Segment

from ..aborting import every_abort

ROOM = 128


class Scene:
    """One text is published."""

    def __init__(self) -> None:
        self.segment = Segment.create(book_bytes(ROOM), "test")
        self.writer, self.reader = KeyBook(self.segment, 0, ROOM), KeyBook(self.segment, 0, ROOM)
        self.writer.publish(b"one" * 20)


def test_what_is_published_last_counts() -> None:
    scene = Scene()
    assert scene.reader.read() == (1, b"one" * 20)
    scene.writer.publish(b"two")
    assert scene.reader.read() == (2, b"two") and scene.reader.version == 2
    assert KeyBook(Segment.create(book_bytes(ROOM), "new"), 0, ROOM).read() == (0, b"")


def test_whichever_store_is_the_last() -> None:
    seen = set()
    for scene, _ in every_abort(Scene, lambda s: lambda: s.writer.publish(b"two"), (book,)):
        seen.add(scene.reader.read())
    assert seen == {(1, b"one" * 20), (2, b"two")}
