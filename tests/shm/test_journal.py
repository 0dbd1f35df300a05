"""The journal of requests: what a successor finds after its frontend has died anywhere."""

from __future__ import annotations

import os

import pytest

from actorserve.shm import journal as module
from actorserve.shm.journal import LONG, Journal

from .aborting import every_abort

ROOM = 4 * LONG


def new_journal(count: int) -> Journal:
    fd = Journal.create(count, ROOM)
    try:
        return Journal(fd, count, ROOM)
    finally:
        os.close(fd)


@pytest.fixture
def journal() -> Journal:
    return new_journal(4)


def test_a_request_is_found_whole(journal: Journal) -> None:
    journal.rest(2, 0)
    assert journal.is_at_rest(2, 0) and not journal.is_at_rest(2, 1)
    journal.begin(2)
    journal.append(2, b"GET ")
    journal.append(2, b"/")
    assert journal.request(2, 5) == b"GET /" and not journal.is_at_rest(2, 5)
    assert journal.request(2, 6) is None  # more was read than is here
    journal.rest(2, 5)
    assert journal.is_at_rest(2, 5) and journal.request(2, 5) is None
    journal.begin(2)
    journal.append(2, b"next")
    assert journal.request(2, 9) == b"next"
    assert not journal.is_at_rest(1, 9) and journal.request(1, 9) is None


def test_records_do_not_touch_each_other(journal: Journal) -> None:
    for number in range(4):
        journal.rest(number, 0)
        journal.begin(number)
        journal.append(number, bytes([number]) * ROOM)
    for number in range(4):
        assert journal.request(number, ROOM) == bytes([number]) * ROOM


def test_what_does_not_fit_is_nobodys(journal: Journal) -> None:
    journal.rest(0, 0)
    journal.begin(0)
    journal.append(0, b"x" * ROOM)
    journal.append(0, b"x")
    journal.append(0, b"y")
    assert journal.request(0, ROOM + 2) is None
    journal.rest(0, ROOM + 2)
    assert journal.is_at_rest(0, ROOM + 2)
    journal.rest(7, 0)
    journal.begin(7)
    journal.append(7, b"x")
    assert not journal.is_at_rest(7, 0) and journal.request(7, 1) is None


def test_a_long_request_gives_its_memory_back() -> None:
    fd = Journal.create(4, ROOM)
    journal = Journal(fd, 4, ROOM)
    assert os.fstat(fd).st_blocks == 0
    journal.rest(1, 0)
    journal.begin(1)
    journal.append(1, b"x" * ROOM)
    assert os.fstat(fd).st_blocks * 512 >= ROOM
    journal.rest(1, ROOM)
    assert os.fstat(fd).st_blocks * 512 < LONG
    assert journal.is_at_rest(1, ROOM)
    os.close(fd)


def test_a_death_anywhere_leaves_the_truth_or_nothing() -> None:
    """Before every bytecode: a successor finds rest, or the bytes that were read, or that it cannot say."""
    first, second = b"abc" + b"x" * LONG, b"second"

    class Scene:
        def __init__(self) -> None:
            self.journal = new_journal(1)
            self.journal.rest(0, 0)
            self.read = 0

        def live(self) -> None:
            for request in (first, second):
                for number, part in enumerate((request[:2], request[2:])):
                    self.read += len(part)  # the kernel has counted it: from here to the end of append it is not here
                    if not number:
                        self.journal.begin(0)
                    self.journal.append(0, part)
                self.journal.rest(0, self.read)

    outcomes = set()
    for scene, _ in every_abort(Scene, lambda scene: scene.live, (module,)):
        read, journal = scene.read, scene.journal
        if journal.is_at_rest(0, read):
            assert read in (0, len(first), len(first) + len(second))
            outcomes.add("rest")
        elif (found := journal.request(0, read)) is not None:
            start = len(first) if read > len(first) else 0
            assert found == (first + second)[start:read]
            outcomes.add("found")
        else:
            outcomes.add("lost")
    assert outcomes == {"rest", "found", "lost"}
