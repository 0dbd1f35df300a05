"""When a blocking actor looks for a while before it sleeps, on a clock of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from actorserve.shm.rings import mailbox
from actorserve.shm.rings.mailbox import BRIEF_S, MOST_UNLOOKED, SPIN_S, Inbox

from ..post import Note, Post, drained

TICK = 1e-6


class Waits:
    """An inbox whose sleeps last as long as is said; each look at the clock takes a tick."""

    def __init__(self, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
        self.post, self.inbox, self.outbox = post, post.inbox(), post.outbox()
        self.now, self.sleep_s, self.slept_at = 0.0, 0.0, 0.0
        self.ticked: Callable[[], None] = lambda: None
        monkeypatch.setattr(mailbox, "time", SimpleNamespace(perf_counter=self._tick))
        monkeypatch.setattr(self.inbox, "_epoll", SimpleNamespace(poll=self._poll))

    def _tick(self) -> float:
        self.now += TICK
        self.ticked()
        return self.now

    def _poll(self, timeout: float) -> None:
        assert self.post.segment.words[0] & 1, "it says that it sleeps"
        self.slept_at = self.now
        self.now += self.sleep_s

    def send(self) -> None:
        self.outbox.post(Note(1))
        assert self.outbox.flush()

    def looks(self, sleep_s: float) -> bool:
        """One wait in which nothing comes before the sleep of that length: was there a look before?"""
        self.sleep_s, self.slept_at, began = sleep_s, -1.0, self.now
        self.inbox.wait(3600)
        assert self.slept_at >= began, "it never slept"
        return self.slept_at - began >= SPIN_S

    def finds(self) -> bool:
        """One wait with a message that comes 10 ticks after its begin, or ends the sleep: was it found by looking?"""
        due, sent = self.now + 10 * TICK, False

        def arrive() -> None:
            nonlocal sent
            if not sent and self.now >= due:
                sent = True
                self.send()

        self.ticked, self.sleep_s, self.slept_at = arrive, BRIEF_S / 2, -1.0
        self.inbox.wait(3600)
        self.ticked = lambda: None
        if not sent:
            self.send()
        assert drained(self.inbox) == [Note(1)]
        return self.slept_at < 0


@pytest.fixture
def waits(post: Post, monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(post, monkeypatch)


def test_who_sleeps_long_never_looks(waits: Waits) -> None:
    assert not any(waits.looks(sleep_s) for sleep_s in [BRIEF_S, 0.001, 1.0] * 100)


def test_after_a_brief_sleep_it_looks_and_finds_without_sleeping(waits: Waits) -> None:
    assert not waits.looks(BRIEF_S / 2)
    assert all(waits.finds() for _ in range(100))
    assert waits.looks(1.0), "it is given up after SPIN_S"
    assert not waits.looks(1.0)


def test_what_is_there_is_not_looked_for(waits: Waits) -> None:
    waits.looks(BRIEF_S / 2)
    waits.send()
    before = waits.now
    waits.inbox.wait(3600)
    assert waits.now - before <= TICK and waits.slept_at < before


def gaps(looked: list[bool]) -> list[int]:
    """How many waits passed without a look before each one with."""
    places = [-1, *(place for place, value in enumerate(looked) if value)]
    return [after - before - 1 for before, after in itertools.pairwise(places)]


def test_the_more_often_in_vain_the_rarer(waits: Waits) -> None:
    looked = [waits.looks(BRIEF_S / 2) for _ in range(3000)]
    first, *others = gaps(looked)
    assert first == 1, "a sleep must have been brief"
    assert others[:7] == [1, 3, 7, 15, 31, 63, 127] and set(others[7:]) == {MOST_UNLOOKED}


def test_looking_comes_back_where_it_finds(waits: Waits) -> None:
    while not waits.looks(BRIEF_S / 2) or waits.inbox._pause < MOST_UNLOOKED:
        assert waits.now < 1
    found = [waits.finds() for _ in range(1000)]
    assert not any(found[:MOST_UNLOOKED]) and all(found[-100:])


def test_a_lucky_find_is_no_reason_to_look_each_time(waits: Waits) -> None:
    while not waits.looks(BRIEF_S / 2) or waits.inbox._pause < MOST_UNLOOKED:
        assert waits.now < 1
    while not waits.finds():
        assert waits.now < 1
    assert sum(waits.looks(BRIEF_S / 2) for _ in range(MOST_UNLOOKED)) == 1


def test_what_was_there_already_does_not_count_as_found(waits: Waits) -> None:
    while not waits.looks(BRIEF_S / 2) or waits.inbox._pause < MOST_UNLOOKED:
        assert waits.now < 1
    for _ in range(MOST_UNLOOKED):
        assert not waits.looks(BRIEF_S / 2)
    waits.send()
    waits.inbox.wait(3600)
    assert drained(waits.inbox) == [Note(1)] and waits.inbox._pause == MOST_UNLOOKED


def test_an_actor_that_sleeps_reads_the_clock_twice(waits: Waits, post: Post) -> None:
    inbox: Inbox = waits.inbox
    waits.sleep_s = 1.0
    before = waits.now
    inbox.wait(3600)
    assert waits.now - before == pytest.approx(1.0 + 2 * TICK)
