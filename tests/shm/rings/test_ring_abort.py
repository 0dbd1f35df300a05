"""A ring's end dies before any one bytecode of sending, receiving, committing and attaching.

Then it is dropped, fresh ends attach, and nothing may be lost, torn, out of order, or come again once it was committed;
of several readers one dies, and the others notice nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actorserve.shm import end_lock
from actorserve.shm.rings import ring
from actorserve.shm.rings.ring import Consumer, Producer
from tests.support.selection import slow

from ..aborting import every_abort, every_state
from .rings import Lane, advance, payload, receive_all

MODULES = (ring, end_lock)
POSITIONS = [0, 16, 128, 200, 240, 248]  # among them: a wrap mark is written, and the ring's end is hit exactly
OLD = [payload(1, 17), payload(2, 9)]
NEW, LATER = payload(3, 40), payload(4, 5)
READERS = pytest.mark.parametrize("readers", [1, 2, 3])
ONE_OR_MORE = pytest.mark.parametrize("readers", [*slow(1, 2), 3])


class Scene:
    """A ring that stands at a position and holds OLD, unread."""

    def __init__(self, position: int = 0, readers: int = 1) -> None:
        self.lane = Lane(256, readers=readers)
        advance(self.lane, position)
        self.send(*OLD)
        self.got: list[bytes] = []
        self.producer: Producer | None = None  # a live end that survives the abort
        self.consumer: Consumer | None = None

    def survives(self) -> tuple[bytes, int]:
        """All that the death of an end that nobody has any more leaves: the ring, and what the test was given."""
        return bytes(self.lane.segment.map), len(self.got)

    def send(self, *records: bytes) -> None:
        """By a fresh producer."""
        producer = self.lane.producer()
        for record in records:
            assert producer.try_send(record)
        producer.close()

    def take_by_all(self) -> list[bytes]:
        """What each reader finds, the last one first."""
        found = [self.take(reader) for reader in reversed(range(self.lane.readers))]
        assert found == found[:1] * self.lane.readers
        return found[0]

    def take(self, reader: int = 0) -> list[bytes]:
        """What a fresh consumer finds; it commits it."""
        consumer = self.lane.consumer(reader)
        records = receive_all(consumer)
        consumer.commit()
        consumer.close()
        return records


def sending(scene: Scene) -> Callable[[], object]:
    producer = scene.lane.producer()
    return lambda: producer.try_send(NEW)


def receiving(scene: Scene) -> Callable[[], object]:
    consumer = scene.lane.consumer(scene.lane.readers - 1)

    def receive_two() -> None:
        for _ in range(2):
            record = consumer.receive()
            assert record is not None
            scene.got.append(record)

    return receive_two


def committing(scene: Scene) -> Callable[[], object]:
    consumer = scene.lane.consumer(scene.lane.readers - 1)
    consumer.receive()
    return consumer.commit


@READERS
@pytest.mark.parametrize("position", POSITIONS)
def test_while_sending(position: int, readers: int) -> None:
    outcomes = set()
    for scene, was_aborted in every_state(lambda: Scene(position, readers), sending, MODULES, Scene.survives, 2):
        scene.send(LATER)
        taken = scene.take_by_all()
        assert taken in ([*OLD, LATER], [*OLD, NEW, LATER])
        assert was_aborted or NEW in taken
        outcomes.add(NEW in taken)
    assert outcomes == {False, True}


@READERS
@pytest.mark.parametrize("position", POSITIONS)
def test_while_sending_into_a_ring_that_is_full(position: int, readers: int) -> None:
    """Of several readers the last one alone has made no room."""

    def full() -> Scene:
        scene = Scene(position, readers)
        producer = scene.lane.producer()
        while producer.try_send(NEW):
            scene.got.append(NEW)
        producer.close()
        for reader in range(readers - 1):
            scene.take(reader)
        return scene

    for scene, _ in every_state(full, sending, MODULES, Scene.survives, 0):
        for reader in range(readers - 1):
            assert scene.take(reader) == []
        assert scene.take(readers - 1) == [*OLD, *scene.got]
        scene.send(LATER)
        assert scene.take_by_all() == [LATER]


@READERS
@pytest.mark.parametrize("position", POSITIONS)
def test_while_receiving(position: int, readers: int) -> None:
    for scene, was_aborted in every_state(lambda: Scene(position, readers), receiving, MODULES, Scene.survives, 1):
        assert scene.got == OLD[: len(scene.got)]
        assert was_aborted or scene.got == OLD
        assert scene.take_by_all() == OLD, "nothing was committed: all of it comes again"
        scene.send(LATER)
        assert scene.take_by_all() == [LATER]


@READERS
@pytest.mark.parametrize("position", POSITIONS)
def test_while_committing(position: int, readers: int) -> None:
    outcomes = set()
    for scene, was_aborted in every_state(lambda: Scene(position, readers), committing, MODULES, Scene.survives, 0):
        scene.send(LATER)
        taken = scene.take(readers - 1)
        for reader in range(readers - 1):
            assert scene.take(reader) == [*OLD, LATER]
        assert taken in ([*OLD, LATER], [*OLD[1:], LATER])
        assert was_aborted or len(taken) == 2
        outcomes.add(len(taken))
    assert outcomes == {2, 3}


@ONE_OR_MORE
def test_while_attaching(readers: int) -> None:
    def attaching_producer(scene: Scene) -> Callable[[], object]:
        return lambda: scene.lane.producer()

    def attaching_consumer(scene: Scene) -> Callable[[], object]:
        return lambda: scene.lane.consumer(readers - 1)

    for act in (attaching_producer, attaching_consumer):
        for scene, _ in every_abort(lambda: Scene(readers=readers), act, MODULES, 80):
            scene.send(LATER)
            assert scene.take_by_all() == [*OLD, LATER]


@ONE_OR_MORE
def test_while_the_very_first_producer_attaches(readers: int) -> None:
    def attaching(lane: Lane) -> Callable[[], object]:
        return lambda: lane.producer()

    for lane, _ in every_abort(lambda: Lane(readers=readers), attaching, MODULES, 80):
        producer, consumers = lane.producer(), lane.consumers()
        assert producer.try_send(NEW) and [receive_all(consumer) for consumer in consumers] == [[NEW]] * readers


@pytest.mark.parametrize("position", [*slow(0, 16, 128), *POSITIONS[3:]])
def test_an_end_that_lives_on_is_as_good_as_a_fresh_one(position: int) -> None:
    """An exception in the middle, from a signal handler say, and the same object is used again."""

    def sending_alive(scene: Scene) -> Callable[[], object]:
        scene.producer = producer = scene.lane.producer()
        return lambda: producer.try_send(NEW)

    def working_alive(scene: Scene) -> Callable[[], object]:
        scene.consumer = consumer = scene.lane.consumer()
        consumer.receive()

        def work() -> None:
            consumer.receive()
            consumer.commit()

        return work

    for scene, _ in every_abort(lambda: Scene(position), sending_alive, MODULES):
        assert scene.producer and scene.producer.try_send(LATER)
        assert scene.take() in ([*OLD, LATER], [*OLD, NEW, LATER])
    for scene, _ in every_abort(lambda: Scene(position), working_alive, MODULES):
        assert scene.consumer
        scene.send(LATER)
        scene.consumer.rewind()
        assert receive_all(scene.consumer) in ([*OLD, LATER], [LATER])
