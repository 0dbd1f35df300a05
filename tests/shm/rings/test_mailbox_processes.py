"""Mailboxes between processes that sleep and wake each other.

The backstop is taken away here: a sleep lasts an hour, so that one lost wake-up is a test that never ends.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import msgspec
import pytest

from actorserve.shm.rings import mailbox
from actorserve.shm.rings.mailbox import Inbox, Outbox, mailbox_bytes, wake
from actorserve.shm.rings.ring import Consumer, Producer, ring_bytes
from actorserve.shm.segment import Segment

from ..processes import KILLED, Child

pytestmark = pytest.mark.timeout(240)
CAPACITY = 4096
FOREVER = 3600.0
BATCH = 4


class Note(msgspec.Struct, array_like=True, frozen=True, gc=False):
    sender: int
    number: int


@pytest.fixture(autouse=True)
def no_backstop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "BACKSTOP_S", FOREVER)


class Town:
    """A page of scratch words, mailboxes, and one lane for each pair (source, target) of their numbers."""

    def __init__(self, boxes: int, lanes: list[tuple[int, int]]) -> None:
        self.lanes = lanes
        self.first_lane = 4096 + boxes * mailbox_bytes()
        self.segment = Segment.create(self.first_lane + len(lanes) * ring_bytes(CAPACITY), "test")
        self.words = self.segment.words
        self.eventfds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(boxes)]

    def _place(self, lane: tuple[int, int]) -> int:
        return self.first_lane + self.lanes.index(lane) * ring_bytes(CAPACITY)

    def _box(self, box: int) -> int:
        return 4096 + box * mailbox_bytes()

    def outbox(self, source: int, target: int) -> Outbox:
        producer = Producer(self.segment, self._place((source, target)), CAPACITY)
        return Outbox(producer, self._box(target), self.eventfds[target])

    def inbox(self, box: int) -> Inbox:
        lanes = {
            str(lane[0]): Consumer(self.segment, self._place(lane), CAPACITY) for lane in self.lanes if lane[1] == box
        }
        return Inbox(self.segment, self._box(box), lanes, self.eventfds[box], Note)

    def wake_all(self) -> None:
        """What the supervisor does after a death."""
        for eventfd in self.eventfds:
            wake(eventfd)


def ping_pong(rounds: int) -> None:
    """Each side waits for every single message: it sleeps, or looks first where that is allowed."""
    town = Town(2, [(0, 1), (1, 0)])

    def play(own: int, starts: bool) -> None:
        inbox, outbox = town.inbox(own), town.outbox(own, 1 - own)
        numbers: list[int] = []
        for number in range(rounds):
            if starts:
                outbox.post(Note(own, number))
                assert outbox.flush()
            while len(numbers) == number:
                inbox.wait(FOREVER)
                inbox.drain(lambda note: numbers.append(note.number))
                inbox.commit()
            if not starts:
                outbox.post(Note(own, number))
                assert outbox.flush()
        assert numbers == list(range(rounds))

    children = [Child(lambda: play(0, True)), Child(lambda: play(1, False))]
    assert [child.wait() for child in children] == [0, 0]


NEVER_LOOK = 0.0  # no sleep is brief


@pytest.mark.parametrize("brief_s", [NEVER_LOOK, mailbox.BRIEF_S])
def test_ping_pong_without_a_lost_wakeup(brief_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "BRIEF_S", brief_s)
    ping_pong(6_000)


@pytest.mark.slow
@pytest.mark.parametrize("brief_s", [NEVER_LOOK, mailbox.BRIEF_S])
def test_long_ping_pong_without_a_lost_wakeup(brief_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "BRIEF_S", brief_s)
    ping_pong(500_000)


def bursts(count: int, senders: int) -> None:
    """Several senders in bursts of all lengths, so that the receiver falls asleep at every possible moment."""
    town = Town(senders + 1, [(sender, 0) for sender in range(1, senders + 1)])

    def send(sender: int) -> None:
        outbox, draws = town.outbox(sender, 0), random.Random(sender)
        for number in range(count):
            outbox.post(Note(sender, number))
            if draws.random() < 0.5:
                while not outbox.flush():
                    os.sched_yield()
                for _ in range(draws.randrange(0, 60)):
                    os.sched_yield()
        while not outbox.flush():
            os.sched_yield()

    def receive() -> None:
        inbox, expected = town.inbox(0), dict.fromkeys(range(1, senders + 1), 0)

        def handle(note: Note) -> None:
            assert note.number == expected[note.sender]
            expected[note.sender] += 1

        while any(number < count for number in expected.values()):
            if not inbox.drain(handle):
                inbox.wait(FOREVER)
            inbox.commit()

    children = [Child(receive), *(Child(lambda s=sender: send(s)) for sender in range(1, senders + 1))]  # type: ignore[misc]
    assert [child.wait() for child in children] == [0] * (senders + 1)


@pytest.mark.parametrize("senders", [1, 3])
def test_bursts_without_a_lost_wakeup(senders: int) -> None:
    bursts(2_000, senders)


@pytest.mark.slow
def test_many_bursts_without_a_lost_wakeup() -> None:
    bursts(200_000, 2)


HANDLED, GOAL = 0, 8  # scratch words


def send_for_ever(town: Town) -> None:
    """Record after record of BATCH messages; the lane alone says where the predecessor stopped."""
    outbox, inbox = town.outbox(0, 1), town.inbox(0)
    while not (goal := town.words[GOAL]) or outbox._producer.sequence < goal:
        first = outbox._producer.sequence * BATCH
        for number in range(first, first + BATCH):
            outbox.post(Note(0, number))
        while not outbox.flush():
            os.sched_yield()
        if first // BATCH % 5 == 0:  # let the receiver fall asleep, and sleep until it answers
            inbox.wait(FOREVER)
        inbox.drain(lambda note: None)
        inbox.commit()


def receive_for_ever(town: Town) -> None:
    """Whole batches in order, none skipped, none again that was committed; an answer to each drain."""
    inbox, outbox, words = town.inbox(1), town.outbox(1, 0), town.words
    numbers: list[int] = []
    while not (goal := words[GOAL]) or words[HANDLED] < goal * BATCH:
        numbers.clear()
        done = inbox.drain(lambda note: numbers.append(note.number))
        if done:
            assert numbers == list(range(numbers[0], numbers[0] + done)) and numbers[0] % BATCH == 0 == done % BATCH
            assert numbers[0] <= words[HANDLED], f"batch {words[HANDLED]} is lost"
            words[HANDLED] = max(words[HANDLED], numbers[-1] + 1)
        outbox.post(Note(1, 0))
        outbox.flush()
        inbox.commit()
        if not done:
            inbox.wait(FOREVER)


def kill_at_random(kills: int, seed: int) -> int:
    """So many kills of either side, each followed by the supervisor's wake-ups; returns the messages that arrived."""
    town = Town(2, [(0, 1), (1, 0)])
    draws = random.Random(seed)
    bodies: list[Any] = [lambda: send_for_ever(town), lambda: receive_for_ever(town)]
    children = [Child(body) for body in bodies]
    for _ in range(kills):
        time.sleep(draws.random() * 0.008)
        side = draws.randrange(2)
        assert children[side].kill() == KILLED, f"the {('sender', 'receiver')[side]} had failed"
        children[side] = Child(bodies[side])
        town.wake_all()
    before = town.words[HANDLED]
    town.words[GOAL] = before // BATCH + 1000
    assert children[1].wait() == 0
    town.wake_all()  # the receiver has left, which is a death for the sender
    children[0].kill()
    assert town.words[HANDLED] >= town.words[GOAL] * BATCH
    return before


def test_random_kills_of_sleeping_and_waking_actors() -> None:
    assert kill_at_random(25, 1) > 25


@pytest.mark.slow
def test_many_random_kills_of_sleeping_and_waking_actors() -> None:
    assert kill_at_random(1000, 2) > 1000
