"""Records that are found again by key, also after a death anywhere in `put`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from actorserve.shm.journals import byte_ring, keyed_log
from actorserve.shm.journals.keyed_log import KEY_BYTES, KeyedLog, OtherLog
from actorserve.shm.layout import PAGE

from ..aborting import every_abort, interrupted

ROOM = 2 * PAGE


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "little")


@pytest.fixture
def fd() -> Iterator[int]:
    fd = KeyedLog.create(3, ROOM)
    yield fd
    os.close(fd)


def written(payloads: list[bytes]) -> tuple[KeyedLog, OtherLog]:
    """A log with these by their numbers, and another's look at it."""
    fd = KeyedLog.create(1, ROOM)
    log = KeyedLog(fd, 1, ROOM, 0)
    os.close(fd)
    for number, payload in enumerate(payloads):
        log.put(key(number), payload)
    return log, log.other(0)


def test_the_newest_of_a_key_is_found_by_a_successor(fd: int) -> None:
    recent = KeyedLog(fd, 3, ROOM, 1)
    assert recent.get(key(1)) is None
    assert recent.put(key(1), b"old") and recent.put(key(2), b"") and recent.put(key(1), b"new")
    successor = KeyedLog(fd, 3, ROOM, 1)
    for reader in (recent, successor, KeyedLog(fd, 3, ROOM, 2).other(1)):
        assert (reader.get(key(1)), reader.get(key(2)), reader.get(key(3))) == (b"new", b"", None)
    assert recent.keys() == successor.keys() == [key(1), key(2)]
    assert KeyedLog(fd, 3, ROOM, 0).keys() == KeyedLog(fd, 3, ROOM, 2).keys() == []


def test_the_old_is_forgotten_for_the_new(fd: int) -> None:
    """Against a plain list of what was put: what is found is its newest end, and successors agree."""
    regions = [KeyedLog(fd, 3, ROOM, index) for index in range(3)]
    others = [regions[index - 1].other(index) for index in range(3)]
    draw = random.Random(1)
    put: list[list[tuple[bytes, bytes]]] = [[], [], []]
    for number in range(600):
        index = draw.randrange(3)
        name, payload = key(draw.randrange(12)), draw.randbytes(draw.randrange(regions[0].longest + 1))
        assert regions[index].put(name, payload)
        put[index].append((name, payload))
        if number % 50 == 0:
            regions[index] = KeyedLog(fd, 3, ROOM, index)
        for region, other, records in zip(regions, others, put, strict=True):
            newest = dict(records)
            found = {name: region.get(name) for name in region.keys()}
            if draw.random() < 0.3:
                assert {name: other.get(name) for name in newest if other.get(name) is not None} == found
            assert found.items() <= newest.items() and (not records or records[-1][0] in found)
            if sum(len(payload) + 40 for _, payload in records[-4:]) <= ROOM:
                assert {name for name, _ in records[-4:]} <= found.keys()


def test_what_is_too_long_changes_nothing(fd: int) -> None:
    recent = KeyedLog(fd, 3, ROOM, 0)
    recent.put(key(1), b"one")
    assert not recent.put(key(1), bytes(recent.longest + 1)) and recent.get(key(1)) == b"one"
    assert recent.put(key(1), bytes(recent.longest)) and recent.get(key(1)) == bytes(recent.longest)


def test_a_death_anywhere_leaves_whole_records() -> None:
    payloads = [bytes([65 + number]) * (900 - number) for number in range(12)]  # more than fit: the first are forgotten

    class Scene:
        def __init__(self) -> None:
            fd = KeyedLog.create(1, ROOM)
            self.fd = os.fdopen(fd, "rb", buffering=0)
            self.recent = KeyedLog(fd, 1, ROOM, 0)
            for number, payload in enumerate(payloads[:-2]):
                self.recent.put(key(number), payload)
            self.other = self.recent.other(0)
            assert self.other.get(key(9)) == payloads[9]

        def put(self) -> None:
            for number, payload in list(enumerate(payloads))[-2:]:
                self.recent.put(key(number), payload)

    counts = set()
    for scene, _ in every_abort(Scene, lambda scene: scene.put, (keyed_log, byte_ring)):
        successor = KeyedLog(scene.fd.fileno(), 1, ROOM, 0)
        assert {name: scene.other.get(name) for name in successor.keys()} == {
            name: successor.get(name) for name in successor.keys()
        }
        found = [int.from_bytes(name, "little") for name in successor.keys()]
        assert found == list(range(found[0], found[-1] + 1)) and found[-1] >= len(payloads) - 3
        assert all(successor.get(key(number)) == payloads[number] for number in found)
        counts.add(found[-1])
        assert successor.put(key(99), b"goes on") and successor.get(key(99)) == b"goes on"
        assert all(successor.get(name) is not None for name in successor.keys())
    assert counts == {len(payloads) - 3, len(payloads) - 2, len(payloads) - 1}


def test_others_may_look_for_long_payloads_alone(fd: int) -> None:
    recent = KeyedLog(fd, 3, ROOM, 0)
    other = recent.other(0, least=10)
    recent.put(key(1), b"long enough")
    recent.put(key(2), b"short")
    assert (other.get(key(1)), other.get(key(2))) == (b"long enough", None)
    recent.put(key(1), b"")
    assert other.get(key(1)) is None
    recent.put(key(1), b"another that is long")
    assert other.get(key(1)) == b"another that is long"
    recent.put(key(1), b"short")
    for number in range(20):
        recent.put(key(9), bytes(900))
        assert other.get(key(1)) is None and other.get(key(9)) == bytes(900), number


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("many", "knows"), [(1, True), (1, False), (5, True), (30, False)])
def test_who_reads_while_another_writes_finds_a_whole_record_or_none(many: int, knows: bool, again: bool) -> None:
    """Before each step of the reader so many records are put at once as overwrite some, or all. `again`: and then the
    one that is read.
    """
    draw = random.Random(2)
    payloads = [bytes([65 + number]) * draw.randrange(600, 900) for number in range(42)]
    found = set[bytes | None]()
    reached, at = True, 0
    while reached:
        at += 1 if knows else 7  # it has far more to do
        writer, reader = written(payloads[:12])
        oldest = writer.keys()[0]
        old, later = writer.get(oldest), b"new" if again else None
        if knows:
            assert reader.get(oldest) == old

        def write(writer: KeyedLog = writer, oldest: bytes = oldest) -> None:
            for number in range(12, 12 + many):
                writer.put(key(number), payloads[number])
            if again:
                writer.put(oldest, b"new")

        got: list[bytes | None] = []
        reached = interrupted(lambda: got.append(reader.get(oldest)), at, write, (keyed_log, byte_ring))  # noqa: B023
        assert got[0] in (old, later)
        found.add(got[0])
        assert all(reader.get(key(number)) == writer.get(key(number)) for number in range(42))
    assert at > 40, f"only {at - 1} bytecodes were traced"
    assert found == {old, later}
