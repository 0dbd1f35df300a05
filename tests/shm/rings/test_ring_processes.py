"""Two processes and a ring between them, killed at random again and again."""

from __future__ import annotations

import os
import random
import time
import zlib

import pytest

from actorserve.shm.rings.ring import Consumer, Producer, RingBusy, ring_bytes
from actorserve.shm.segment import Segment

from ..processes import KILLED, Child

CAPACITY = 4096
PROCESSED, COMMITTED, GOAL, RECORDS_LOST = 0, 8, 16, 24  # scratch words beside the ring, a cache line each
RING = 4096


def checked_payload(number: int) -> bytes:
    """Number, checksum, and filler of a length that the number decides."""
    filler = random.Random(number).randbytes(number * 7919 % 400)
    body = number.to_bytes(8, "little") + filler
    return zlib.crc32(body).to_bytes(4, "little") + body


def number_of(record: bytes) -> int:
    """AssertionError for a torn record."""
    number = int.from_bytes(record[4:12], "little")
    assert zlib.crc32(record[4:]) == int.from_bytes(record[:4], "little"), f"record {number} is torn"
    assert record == checked_payload(number)
    return number


def produce(segment: Segment) -> None:
    """Send record after record; the ring alone says where the predecessor stopped."""
    producer = Producer(segment, RING, CAPACITY)
    while not (goal := segment.words[GOAL]) or producer.sequence < goal:
        while not producer.try_send(checked_payload(producer.sequence + 1)):
            os.sched_yield()


def consume(segment: Segment) -> None:
    """Receive up to some records, note the last, commit, note that; check against what predecessors have noted."""
    consumer, words, expected = Consumer(segment, RING, CAPACITY), segment.words, 0
    draws = random.Random(time.monotonic_ns())
    while not (goal := words[GOAL]) or words[COMMITTED] < goal:
        last = 0
        for _ in range(draws.randrange(1, 8)):
            if (record := consumer.receive()) is None:
                break
            last = number_of(record)
            if not expected:
                assert words[COMMITTED] < last <= words[PROCESSED] + 1, f"{last} after {words[PROCESSED]}"
            assert expected in (0, last), f"{last} where {expected} should be"
            expected = last + 1
            words[PROCESSED] = max(last, words[PROCESSED])
        if last:
            consumer.commit()
            words[COMMITTED] = last
        else:
            os.sched_yield()


def kill_at_random(kills: int, seed: int) -> int:
    """So many kills of either end at random moments; returns how many records went through all the same."""
    segment = Segment.create(RING + ring_bytes(CAPACITY), "test")
    draws = random.Random(seed)
    bodies = [lambda: produce(segment), lambda: consume(segment)]
    children = [Child(body) for body in bodies]
    for _ in range(kills):
        time.sleep(draws.random() * 0.008)
        end = draws.randrange(2)
        assert children[end].kill() == KILLED, f"the {('producer', 'consumer')[end]} had failed"
        children[end] = Child(bodies[end])
    segment.words[GOAL] = goal = segment.words[PROCESSED] + 1000
    assert [child.wait() for child in children] == [0, 0]
    assert segment.words[COMMITTED] >= goal
    return segment.words[COMMITTED]


def test_random_kills_of_both_ends() -> None:
    assert kill_at_random(20, 1) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_random_kills_of_both_ends(seed: int) -> None:
    assert kill_at_random(1000, seed) > 1000


def test_an_end_is_free_once_its_holder_is_killed() -> None:
    segment = Segment.create(RING + ring_bytes(CAPACITY), "test")

    def hold() -> None:
        ends = Producer(segment, RING, CAPACITY), Consumer(segment, RING, CAPACITY)
        segment.words[0] = 1
        while ends:
            time.sleep(1)

    for _ in range(20):
        segment.words[0] = 0
        child = Child(hold)
        while not segment.words[0]:
            os.sched_yield()
        for end in (Producer, Consumer):
            with pytest.raises(RingBusy):
                end(segment, RING, CAPACITY)
        assert child.kill() == KILLED
        for end in (Producer, Consumer):
            end(segment, RING, CAPACITY).close()


def exchange(count: int) -> None:
    """So many numbered records from a child, in order."""
    segment = Segment.create(RING + ring_bytes(CAPACITY), "test")

    def send() -> None:
        producer = Producer(segment, RING, CAPACITY)
        for number in range(1, count + 1):
            while not producer.try_send(number.to_bytes(8, "little")):
                os.sched_yield()

    child = Child(send)
    consumer, expected = Consumer(segment, RING, CAPACITY), 0
    while expected < count:
        if (record := consumer.receive()) is None:
            consumer.commit()
            os.sched_yield()
            continue
        expected += 1
        assert int.from_bytes(record, "little") == expected
        if not expected % 16:
            consumer.commit()
    assert child.wait() == 0 and consumer.receive() is None


def test_ordered_exchange() -> None:
    exchange(30_000)


@pytest.mark.slow
def test_ordered_exchange_of_a_million() -> None:
    exchange(1_000_000)
