"""Outbox and Inbox in one process: batches, room, redelivery."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from actorserve.shm.rings import mailbox

from ..post import Blob, Note, Post, depths, drained


def test_messages_of_one_turn_are_one_record(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    for number in range(100):
        outbox.post(Note(number, "x" * number))
    outbox.post(Blob(b"\0\xff"))
    assert outbox.backlog == 101 and depths(inbox) == [0, 0]
    assert outbox.flush() and outbox.backlog == 0
    assert depths(inbox)[0] > 0 and depths(inbox)[1] == 0
    assert drained(inbox) == [*(Note(number, "x" * number) for number in range(100)), Blob(b"\0\xff")]
    assert outbox._producer.sequence == 1


def test_nothing_queued_is_nothing_sent(post: Post) -> None:
    outbox = post.outbox()
    assert outbox.flush() and outbox._producer.sequence == 0


def test_a_long_batch_is_split(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    sent = [Note(number, "x" * 1000) for number in range(300)] + [Note(0)]
    for message in sent:
        outbox.post(message)
    assert outbox.flush() and outbox._producer.sequence >= 300_000 // mailbox.BATCH_BYTES
    records = []
    while (record := inbox._consumers[0].receive()) is not None:
        records.append(record)
    assert max(map(len, records)) <= mailbox.BATCH_BYTES
    inbox.rewind()
    assert drained(inbox) == sent


def test_a_single_message_may_be_long(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    sent = [Note(1), Blob(bytes(300_000)), Note(2)]
    for message in sent:
        outbox.post(message)
    assert outbox.flush() and drained(inbox) == sent
    longest = Blob(bytes(outbox.max_message - 8))
    outbox.post(longest)
    assert outbox.flush() and drained(inbox) == [longest]


def test_a_message_that_never_fits_is_refused_and_the_others_go(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    for message in (Note(1), Blob(bytes(1 << 20)), Note(2)):
        outbox.post(message)
    with pytest.raises(ValueError, match=r"which takes 524,?264 bytes: Blob of 1,048,59\d bytes"):
        outbox.flush()
    assert outbox.backlog == 0 and outbox.flush()
    assert drained(inbox) == [Note(1), Note(2)]


def test_what_finds_no_room_waits_in_order() -> None:
    post = Post(4096)
    outbox, inbox = post.outbox(), post.inbox()
    got: list[Any] = []
    flushed = []
    for number in range(200):
        outbox.post(Note(number, "x" * 100))
        flushed.append(outbox.flush())
        if number % 40 == 39:
            inbox.drain(got.append)
            inbox.commit()
    assert not all(flushed) and outbox.backlog > 0
    while not outbox.flush():
        got += drained(inbox)
    assert outbox.backlog == 0
    assert got + drained(inbox) == [Note(number, "x" * 100) for number in range(200)]
    post.close()


def test_one_lane_does_not_starve_another(post: Post) -> None:
    first, second, inbox = post.outbox("a"), post.outbox("b"), post.inbox()
    for number in range(600):
        first.post(Note(number, "x" * 1000))
    second.post(Note(-1))
    assert first.flush() and second.flush()
    got: list[Any] = []
    inbox.drain(got.append)
    assert Note(-1) in got and len(got) <= 2 * mailbox.DRAIN_BYTES // 1000
    inbox.commit()
    assert len(got + drained(inbox)) == 601


def test_what_was_not_committed_comes_again(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    for number in range(3):
        outbox.post(Note(number))
        outbox.flush()
    got: list[Any] = []
    assert inbox.drain(got.append) == 3 and inbox.drain(got.append) == 0
    inbox.close()
    successor = post.inbox()
    assert drained(successor) == got == [Note(0), Note(1), Note(2)]
    assert drained(successor) == []


def test_a_handler_that_raises_gets_it_again(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    for number in range(4):
        outbox.post(Note(number))
    outbox.flush()

    def refuse(message: Note) -> None:
        if message.number == 2:
            raise LookupError

    with pytest.raises(LookupError):
        inbox.drain(refuse)
    inbox.commit()
    assert drained(inbox) == [Note(number) for number in range(4)]


def test_what_comes_while_it_handles_is_for_the_next_turn(post: Post) -> None:
    """So an actor that always has something to do commits what it has done."""
    outbox, inbox = post.outbox(), post.inbox()
    outbox.post(Note(0))
    outbox.flush()
    got: list[Any] = []

    def handle(message: Note) -> None:
        got.append(message)
        outbox.post(Note(message.number + 1))
        outbox.flush()

    for turn in range(5):
        assert inbox.drain(handle) == 1 and got[-1] == Note(turn)
        inbox.commit()


def test_a_record_says_when_it_was_sent(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    stamps = []
    for number in range(3):
        before = time.monotonic_ns()
        outbox.post(Note(number))
        outbox.flush()
        stamps.append((before, time.monotonic_ns()))
    got: list[int] = []
    assert inbox.drain(lambda message: got.append(inbox.stamp_ns)) == 3
    assert all(before <= stamp <= after for stamp, (before, after) in zip(got, stamps, strict=True))


def test_what_is_no_message_is_reported(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    outbox._producer.try_send(msgspec.msgpack.encode([[7, 1]]))
    for _ in range(2):
        with pytest.raises(msgspec.ValidationError):
            inbox.drain(lambda message: None)
