"""Who is woken, when, and how often: blocking actors and event loops, in one process."""

from __future__ import annotations

import asyncio
import os
import select
from typing import Any

import pytest

from actorserve.shm.rings import mailbox
from actorserve.shm.rings.mailbox import wake

from ..post import Note, Post, drained


def test_only_a_sleeper_is_woken_and_once_a_sleep(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()

    def send() -> int:
        outbox.post(Note(1))
        outbox.flush()
        return post.wakeups()

    assert send() == 0
    assert not inbox.arm(), "something is there"
    assert send() == 0
    drained(inbox)
    for _ in range(3):
        assert inbox.arm()
        assert [send(), send()] == [1, 0]
        inbox.disarm()
        drained(inbox)
    assert inbox.arm() and inbox.arm()
    assert send() == 1
    drained(inbox)
    assert inbox.arm(), "a second sleep without a disarm"
    assert send() == 1


def test_two_senders_wake_without_knowing_of_each_other(post: Post) -> None:
    first, second, inbox = post.outbox("a"), post.outbox("b"), post.inbox()
    assert inbox.arm()
    for outbox in (first, second):
        outbox.post(Note(1))
        outbox.flush()
    assert post.wakeups() == 2


def test_a_successor_of_a_sleeper_is_awake_and_its_sleeps_are_new(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    assert inbox.arm()
    outbox.post(Note(1))
    outbox.flush()
    assert post.wakeups() == 1
    inbox.close()
    successor = post.inbox()
    assert not post.segment.words[0] & 1
    assert drained(successor) == [Note(1)] and successor.arm()
    outbox.post(Note(2))
    outbox.flush()
    assert post.wakeups() == 1


def test_only_the_owner_writes_the_sleeping_word(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    assert inbox.arm()
    before = post.segment.words[0]
    outbox.post(Note(1))
    outbox.flush()
    assert post.segment.words[0] == before


def test_unconditional_wakeups(post: Post) -> None:
    wake(post.eventfd)
    post.outbox().wake()
    assert post.wakeups() == 2
    os.eventfd_write(post.eventfd, (1 << 64) - 2)
    wake(post.eventfd)
    assert post.wakeups() == (1 << 64) - 2


def test_wait_returns_for_what_is_there_and_never_reads_the_eventfd(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    inbox.wait(0)
    for _ in range(3):
        wake(post.eventfd)
        inbox.wait(3600)
    outbox.post(Note(1))
    outbox.flush()
    inbox.wait(3600)
    assert drained(inbox) == [Note(1)] and post.wakeups() == 3


def test_no_sleep_is_longer_than_the_backstop(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = post.inbox()
    slept: list[float] = []

    class Epoll:
        def poll(self, timeout: float) -> None:
            slept.append(timeout)
            assert post.segment.words[0] & 1

    monkeypatch.setattr(inbox, "_epoll", Epoll())
    inbox.wait(0.25)
    inbox.wait(3600)
    assert slept == [0.25, mailbox.BACKSTOP_S] and not post.segment.words[0] & 1


async def test_an_event_loop_sleeps_and_wakes(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    got: list[Any] = []
    arrived = asyncio.Event()

    def turn() -> None:
        inbox.disarm()
        while True:
            inbox.drain(got.append)
            inbox.commit()
            if inbox.arm():
                break
        arrived.set()

    assert inbox.arm()
    loop = asyncio.get_running_loop()
    loop.add_reader(inbox.fileno(), turn)
    for number in range(50):
        arrived.clear()
        outbox.post(Note(number))
        outbox.flush()
        await asyncio.wait_for(arrived.wait(), 30)
    loop.remove_reader(inbox.fileno())
    assert got == [Note(number) for number in range(50)]
    poll = select.poll()
    poll.register(post.eventfd, select.POLLIN)
    assert not poll.poll(0), "every wake-up was swallowed"


def test_who_need_not_be_woken_yet_finds_it_all_the_same(post: Post) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    assert inbox.arm()
    outbox.post(Note(1))
    assert outbox.flush(wakes=False) and not post.wakeups() and not outbox.backlog
    outbox.wake_sleepers()
    outbox.wake_sleepers()
    assert post.wakeups() == 1, "once for a sleep"
    inbox.disarm()
    outbox.post(Note(2))
    assert outbox.flush(wakes=False) and not inbox.arm(), "nobody falls asleep beside it"
    assert drained(inbox) == [Note(1), Note(2)]
