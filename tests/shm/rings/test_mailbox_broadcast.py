"""One sender and several receivers by one lane: all are woken, all get everything, also when any of them dies."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actorserve.shm.rings import mailbox, ring
from actorserve.shm.rings.lane_view import LaneView, view_lane
from actorserve.shm.rings.mailbox import Inbox, Outbox, mailbox_bytes, wake
from actorserve.shm.rings.ring import Consumer, Producer, ring_bytes
from actorserve.shm.segment import Segment
from tests.support.selection import slow

from ..aborting import every_abort
from ..post import Blob, Note, drained
from ..processes import KILLED, Child

pytestmark = pytest.mark.timeout(240)
MODULES = (mailbox, ring)
SCRATCH = 4096
GOAL, HANDLED = 0, 8  # scratch words; the latter is the first reader's, the others' follow in cache lines of their own
FOREVER = 3600.0
NOTE_BYTES = 24  # of a record with one Note(number < 128, "")


class Group:
    """Scratch words, a mailbox for each of several receivers, and the one lane that leads to all of them."""

    def __init__(self, readers: int = 3, capacity: int = 4096) -> None:
        self.readers, self.capacity = readers, capacity
        self.lane = SCRATCH + readers * mailbox_bytes()
        self.segment = Segment.create(self.lane + ring_bytes(capacity, readers), "test")
        self.words = self.segment.words
        self.eventfds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(readers)]
        self.alive: Outbox | None = None

    def outbox(self) -> Outbox:
        producer = Producer(self.segment, self.lane, self.capacity, self.readers)
        first, *others = [(SCRATCH + mailbox_bytes() * reader, fd) for reader, fd in enumerate(self.eventfds)]
        return Outbox(producer, *first, others)

    def inbox(self, reader: int) -> Inbox:
        lanes = {"sender": Consumer(self.segment, self.lane, self.capacity, self.readers, reader)}
        sleeping = SCRATCH + mailbox_bytes() * reader
        return Inbox(self.segment, sleeping, lanes, self.eventfds[reader], Note | Blob)

    def inboxes(self) -> list[Inbox]:
        return [self.inbox(reader) for reader in range(self.readers)]

    def view(self, reader: int) -> LaneView:
        found = view_lane(self.segment, self.lane, self.capacity, self.readers, reader)
        assert found is not None
        return found

    def wakeups(self) -> list[int]:
        """Eventfd writes since the last look."""
        for fd in self.eventfds:
            wake(fd)
        return [os.eventfd_read(fd) - 1 for fd in self.eventfds]

    def wake_all(self) -> None:
        """What the supervisor does after a death."""
        for fd in self.eventfds:
            wake(fd)

    def close(self) -> None:
        for fd in self.eventfds:
            os.close(fd)
        self.segment.close()


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.close()


def send(outbox: Outbox, *messages: Any) -> None:
    for message in messages:
        outbox.post(message)
    assert outbox.flush()


def test_all_who_sleep_are_woken_once_and_nobody_else(group: Group) -> None:
    outbox, (first, second, third) = group.outbox(), group.inboxes()
    assert first.arm() and third.arm()
    send(outbox, Note(1))
    assert group.wakeups() == [1, 0, 1]
    send(outbox, Note(2))
    assert group.wakeups() == [0, 0, 0], "these sleeps were ended"
    for inbox in (first, second, third):
        assert drained(inbox) == [Note(1), Note(2)]
    assert second.arm() and third.arm()
    send(outbox, Note(3))
    assert group.wakeups() == [0, 1, 1]
    outbox.wake()
    assert group.wakeups() == [1, 1, 1]


def test_one_that_stands_still_keeps_what_is_posted_waiting(group: Group) -> None:
    """Nothing is lost, nobody is overtaken; what found no room goes out when the slowest has made some."""
    outbox, inboxes = group.outbox(), group.inboxes()
    got: list[list[Any]] = [[], []]
    for number in range(20):
        outbox.post(Blob(bytes([number]) * 500))
        assert outbox.flush() == (number < 7)
        for inbox, messages in zip(inboxes, got, strict=False):
            messages += drained(inbox)
    assert outbox.backlog == 13 and [len(messages) for messages in got] == [7, 7]
    assert (group.view(0).waiting_records, group.view(2).waiting_records) == (0, 7)
    assert inboxes[0].arm()
    late: list[Any] = []
    while outbox.backlog:
        more = drained(inboxes[2])
        assert more
        late += more
        outbox.flush()
        for inbox, messages in zip(inboxes, got, strict=False):
            messages += drained(inbox)
    assert group.wakeups()[0] == 1, "room was made, and it heard of what came then"
    late += drained(inboxes[2])
    assert late == got[0] == got[1] == [Blob(bytes([number]) * 500) for number in range(20)]


def test_each_reader_has_its_own_depth_and_age(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    assert group.view(2) == LaneView(0, 0, 0, 0, None)
    outbox, inboxes = group.outbox(), group.inboxes()
    stamps = iter([10**12, 10**12 + 5, 10**12 + 9])
    monkeypatch.setattr(mailbox, "monotonic_ns", lambda: next(stamps))
    for number in range(3):
        send(outbox, Note(number))
    for reader in range(2):
        for _ in range(reader + 1):
            inboxes[reader].drain(lambda message: None, one_record=True)
        inboxes[reader].commit()
    all_of_it = 3 * NOTE_BYTES
    assert group.view(0) == LaneView(all_of_it, 3, 2 * NOTE_BYTES, 2, 10**12 + 5)
    assert group.view(1) == LaneView(all_of_it, 3, NOTE_BYTES, 1, 10**12 + 9)
    assert group.view(2) == LaneView(all_of_it, 3, all_of_it, 3, 10**12)
    with pytest.raises(ValueError, match="no reader 3"):
        group.view(3)


@pytest.mark.parametrize("readers", [*slow(2), 3])
def test_a_sender_that_dies_anywhere_sends_to_all_or_to_none(readers: int) -> None:
    outcomes = set()

    def flushing(scene: Group) -> Callable[[], object]:
        scene.alive = outbox = scene.outbox()
        outbox.post(Note(1))
        return outbox.flush

    def asleep() -> Group:
        scene = Group(readers)
        for inbox in scene.inboxes():
            assert inbox.arm()
            inbox.close()
        return scene

    for scene, was_aborted in every_abort(asleep, flushing, MODULES, 80):
        assert scene.alive
        scene.alive.close()
        woken = scene.wakeups()
        assert max(woken) <= 1 and (was_aborted or woken == [1] * readers)
        outcomes.add(sum(woken))
        taken = [drained(inbox) for inbox in scene.inboxes()]
        assert taken in ([[]] * readers, [[Note(1)]] * readers)
        assert taken[0] or not any(woken), "woken for nothing"
        send(scene.outbox(), Note(2))
        scene.close()
    assert outcomes == set(range(readers + 1)), "it died between any two wake-ups"


@pytest.mark.parametrize("readers", [*slow(2), 3])
def test_a_receiver_that_dies_anywhere_leaves_the_others_alone(readers: int) -> None:
    def turning(scene: Group) -> Callable[[], object]:
        inbox = scene.inbox(1)
        scene.alive = scene.outbox()
        send(scene.alive, Note(1), Note(2))

        def turn() -> None:
            inbox.drain(lambda message: None)
            inbox.commit()
            inbox.arm()

        return turn

    outcomes = set()
    for scene, _ in every_abort(lambda: Group(readers), turning, MODULES, 100):
        assert scene.alive
        send(scene.alive, Note(3))
        taken = [drained(inbox) for inbox in scene.inboxes()]
        outcomes.add(len(taken.pop(1)))
        assert taken == [[Note(1), Note(2), Note(3)]] * (readers - 1)
        scene.close()
    assert outcomes == {1, 3}


def send_for_ever(group: Group) -> None:
    """Record after record; the lane alone says where the predecessor stopped. It lets receivers fall asleep."""
    outbox, draws = group.outbox(), random.Random(time.monotonic_ns())
    while not (goal := group.words[GOAL]) or outbox._producer.sequence < goal:
        outbox.post(Blob(outbox._producer.sequence.to_bytes(8, "little") * draws.randrange(1, 60)))
        while not outbox.flush():
            os.sched_yield()
        for _ in range(draws.randrange(0, 20)):
            os.sched_yield()


def receive_for_ever(group: Group, reader: int) -> None:
    """In order, none skipped, none torn, none again that was committed."""
    inbox, words, own = group.inbox(reader), group.words, HANDLED + 8 * reader
    numbers: list[int] = []

    def handle(blob: Blob) -> None:
        assert blob.data == blob.data[:8] * (len(blob.data) // 8)
        numbers.append(int.from_bytes(blob.data[:8], "little"))

    while not (goal := words[GOAL]) or words[own] < goal:
        numbers.clear()
        if inbox.drain(handle):
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert numbers[0] <= words[own], f"record {words[own]} is lost"
            words[own] = max(words[own], numbers[-1] + 1)
            inbox.commit()
            inbox.rewind()
        else:
            inbox.wait(FOREVER)


def kill_at_random(kills: int, seed: int, readers: int) -> int:
    """So many kills of any of them, each followed by the supervisor's wake-ups; returns the records that all got."""
    group, draws = Group(readers), random.Random(seed)
    bodies: list[Callable[[], None]] = [lambda: send_for_ever(group)]
    bodies += [lambda own=reader: receive_for_ever(group, own) for reader in range(readers)]  # type: ignore[misc]
    children = [Child(body) for body in bodies]
    for _ in range(kills):
        time.sleep(draws.random() * 0.008)
        victim = draws.randrange(len(children))
        assert children[victim].kill() == KILLED, f"{victim} had failed"
        children[victim] = Child(bodies[victim])
        group.wake_all()
    handled = slice(HANDLED, HANDLED + 8 * readers, 8)
    before = min(group.words[handled])
    group.words[GOAL] = max(group.words[handled]) + 500
    group.wake_all()
    assert [child.wait() for child in children] == [0] * len(children)
    assert min(group.words[handled]) >= group.words[GOAL]
    group.close()
    return before


@pytest.fixture
def no_backstop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lost wake-up is a test that never ends."""
    monkeypatch.setattr(mailbox, "BACKSTOP_S", FOREVER)


@pytest.mark.parametrize("readers", [*slow(2), 3])
def test_random_kills(readers: int, no_backstop: None) -> None:
    assert kill_at_random(15, 1, readers) > 15


@pytest.mark.slow
@pytest.mark.parametrize("readers", [2, 3, 8])
def test_many_random_kills(readers: int, no_backstop: None) -> None:
    assert kill_at_random(1000, 2, readers) > 1000
