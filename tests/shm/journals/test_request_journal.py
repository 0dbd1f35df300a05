"""The journal of requests: what a successor finds after its frontend has died anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from actorserve.shm.journals import byte_ring, request_journal
from actorserve.shm.journals.request_journal import LONG, MOST_READ, RequestJournal

from ..aborting import every_abort

ROOM = 4 * LONG


def new_journal(count: int) -> RequestJournal:
    fd = RequestJournal.create(count, ROOM)
    try:
        return RequestJournal(fd, count, ROOM)
    finally:
        os.close(fd)


def read(journal: RequestJournal, number: int, data: bytes) -> None:
    """As the kernel and a frontend do."""
    while data:
        room = journal.room(number)
        assert room is not None
        size = min(len(room), len(data))
        room[:size] = data[:size]
        journal.filled(number, size)
        data = data[size:]


@pytest.fixture
def journal() -> RequestJournal:
    return new_journal(4)


def test_a_request_is_found_whole(journal: RequestJournal) -> None:
    journal.rest(2, 0)
    assert journal.is_at_rest(2, 0) and not journal.is_at_rest(2, 1)
    read(journal, 2, b"GET ")
    assert journal.request(2, 4) == b"GET " and not journal.is_begun(2)
    journal.begin(2)
    read(journal, 2, b"/")
    assert journal.request(2, 5) == b"GET /" and journal.is_begun(2) and not journal.is_at_rest(2, 5)
    journal.rest(2, 5)
    assert journal.is_at_rest(2, 5) and journal.request(2, 5) is None and not journal.is_begun(2)
    journal.begin(2)
    read(journal, 2, b"next")
    assert journal.request(2, 9) == b"next"
    assert not journal.is_at_rest(1, 9)


def test_what_the_kernel_has_read_is_there_before_anybody_says_so(journal: RequestJournal) -> None:
    journal.rest(0, 7)
    room = journal.room(0)
    assert room is not None and len(room) == MOST_READ
    room[:3] = b"GET"
    assert journal.request(0, 10) == b"GET" and not journal.is_begun(0)
    journal.filled(0, 3)
    again = journal.room(0)
    assert again is not None
    again[:2] = b" /"
    assert journal.request(0, 12) == b"GET /"


def test_records_do_not_touch_each_other(journal: RequestJournal) -> None:
    for number in range(4):
        journal.rest(number, 0)
        journal.begin(number)
        read(journal, number, bytes([number]) * ROOM)
    for number in range(4):
        assert journal.request(number, ROOM) == bytes([number]) * ROOM


def test_what_does_not_fit_is_nobodys(journal: RequestJournal) -> None:
    journal.rest(0, 0)
    journal.begin(0)
    read(journal, 0, b"x" * ROOM)
    assert journal.request(0, ROOM) == b"x" * ROOM
    for _ in range(2):
        assert journal.room(0) is None  # and so it is told before any of it is read
        assert journal.request(0, ROOM) is None and journal.request(0, ROOM + 2) is None
        journal.begin(0)
    journal.rest(0, ROOM + 2)
    assert journal.is_at_rest(0, ROOM + 2) and journal.room(0) is not None
    journal.rest(7, 0)
    journal.begin(7)
    journal.filled(7, 1)
    assert journal.room(7) is None and not journal.is_at_rest(7, 0) and journal.request(7, 1) is None


def test_a_successor_goes_on_behind_what_it_found(journal: RequestJournal) -> None:
    journal.rest(0, 0)
    room = journal.room(0)
    assert room is not None
    room[:5] = b"onetw"
    journal.begin(0)
    journal.take_over(0, b"onetw")  # filled() was not reached
    read(journal, 0, b"o")
    assert journal.request(0, 6) == b"onetwo"
    journal.take_over(0, b"onetwo", 3)
    assert journal.request(0, 6) == b"two" and not journal.is_begun(0)
    read(journal, 0, b"!")
    assert journal.request(0, 7) == b"two!"


@pytest.mark.parametrize("size", [ROOM, ROOM - 1])
def test_a_long_request_gives_its_memory_back(size: int) -> None:
    fd = RequestJournal.create(4, ROOM)
    journal = RequestJournal(fd, 4, ROOM)
    assert os.fstat(fd).st_blocks == 0
    journal.rest(1, 0)
    journal.begin(1)
    read(journal, 1, b"x" * size)
    assert (journal.room(1) is None) == (size == ROOM)
    assert os.fstat(fd).st_blocks * 512 >= ROOM
    journal.rest(1, size)
    assert os.fstat(fd).st_blocks * 512 < LONG
    assert journal.is_at_rest(1, size)
    os.close(fd)


@pytest.mark.usefixtures("keeps_pages")
def test_a_long_request_is_over_where_its_memory_stays(journal: RequestJournal) -> None:
    journal.rest(1, 0)
    journal.begin(1)
    read(journal, 1, b"x" * (ROOM - 1))
    journal.rest(1, ROOM - 1)
    assert journal.is_at_rest(1, ROOM - 1) and journal.request(1, ROOM - 1) is None
    journal.begin(1)
    read(journal, 1, b"next")
    assert journal.request(1, ROOM + 3) == b"next"


class Scene:
    """A record, and how much the kernel has read."""

    first, second = b"abc" + b"x" * LONG, b"second"

    def __init__(self) -> None:
        self.journal = new_journal(1)
        self.journal.rest(0, 0)
        self.read = 0

    def live(self) -> None:
        """Two requests, the first in two pieces: the kernel stores and counts in one."""
        for request in (self.first, self.second):
            for number, part in enumerate((request[:2], request[2:])):
                room = self.journal.room(0)
                assert room is not None
                room[: len(part)] = part
                self.read += len(part)
                if not number:
                    self.journal.begin(0)
                self.journal.filled(0, len(part))
            self.journal.rest(0, self.read)

    def behind(self) -> None:
        """A successor puts what is behind the first in its place."""
        self.journal.take_over(0, self.first + self.second, len(self.first))


def test_a_death_anywhere_leaves_the_truth() -> None:
    """Before every bytecode: a successor finds rest, or all bytes that were read."""
    outcomes = set()
    for scene, _ in every_abort(Scene, lambda scene: scene.live, (request_journal, byte_ring)):
        count, journal = scene.read, scene.journal
        if journal.is_at_rest(0, count):
            assert count in (0, len(scene.first), len(scene.first) + len(scene.second))
            outcomes.add("rest")
        else:
            start = len(scene.first) if count > len(scene.first) else 0
            assert journal.request(0, count) == (scene.first + scene.second)[start:count]
            outcomes.add(f"begun: {journal.is_begun(0)}")
    assert outcomes == {"rest", "begun: True", "begun: False"}


def test_a_death_while_a_request_is_put_in_its_place() -> None:
    """Its successor finds both requests, or that it cannot say, or the second alone, at which nobody has looked."""

    def make() -> Scene:
        scene = Scene()
        scene.journal.begin(0)
        read(scene.journal, 0, scene.first + scene.second)
        return scene

    outcomes = []
    for scene, _ in every_abort(make, lambda scene: scene.behind, (request_journal, byte_ring)):
        journal = scene.journal
        found = journal.request(0, len(scene.first + scene.second))
        assert found in (scene.first + scene.second, None, scene.second)
        assert found is None or journal.is_begun(0) == (found != scene.second)
        outcomes.append(found if found is None else len(found))
    assert len(set(outcomes)) == 3 and outcomes[-1] == len(Scene.second)


def test_what_a_websocket_sends_is_passed_over_by_and_by(journal: RequestJournal) -> None:
    journal.rest(1, 0)
    journal.begin(1)
    read(journal, 1, b"GET /ws")
    journal.upgrade(1)
    assert journal.is_upgraded(1)
    read(journal, 1, b"one")
    journal.pass_over(1, 7, 10)  # the rest stays where it is until there is much of it
    assert journal.since(1, 7, 10) == (b"GET /wsone", b"one")
    assert journal.since(1, 8, 11) is not None and journal.since(1, 11, 10) is None
    journal.pass_over(1, 10, 10)
    assert journal.since(1, 10, 10) == (b"", b"") and journal.is_upgraded(1)
    long = bytes(ROOM // 2) + b"long"
    read(journal, 1, long)
    journal.pass_over(1, 10 + ROOM // 2, 10 + len(long))
    assert journal.since(1, 10 + ROOM // 2, 10 + len(long)) == (b"long", b"long") and journal.is_upgraded(1)
    journal.rest(1, 0)
    assert not journal.is_upgraded(1)


@pytest.mark.parametrize(("before", "wanted"), [(b"all of it", b""), (bytes(ROOM // 2), b"tail")])
def test_passing_over_may_end_anywhere(before: bytes, wanted: bytes) -> None:
    """Before every bytecode: what is wanted is there, or nobody can go on."""

    def make() -> RequestJournal:
        journal = new_journal(1)
        journal.rest(0, 0)
        journal.begin(0)
        journal.upgrade(0)
        read(journal, 0, before + wanted)
        return journal

    upto, count = len(before), len(before + wanted)
    outcomes = set()
    for journal, _ in every_abort(
        make, lambda one: lambda: one.pass_over(0, upto, count), (request_journal, byte_ring)
    ):
        found = journal.since(0, upto, count) if journal.is_upgraded(0) else None
        assert found is None or found[1] == wanted
        outcomes.add(found is None)
    assert outcomes == ({False, True} if wanted else {False})


def lives(count: int) -> list[RequestJournal]:
    """One frontend's, one after the other, all with the same records."""
    fd = RequestJournal.create(4, ROOM)
    try:
        return [RequestJournal(fd, 4, ROOM, life) for life in range(1 << 32, (1 << 32) + count)]
    finally:
        os.close(fd)


def test_a_request_is_suspect_of_the_deaths_of_those_who_had_it() -> None:
    first, second, third, fourth, fifth = lives(5)
    for number in (1, 2):
        first.rest(number, 0)
        read(first, number, b"GET")
        first.begin(number)
    assert second.deaths(1, is_blamed=True) == second.deaths(2, is_blamed=True) == 1
    second.take_up(1)  # and dies before it comes to the other
    assert (third.deaths(1, is_blamed=True), third.deaths(2, is_blamed=True)) == (2, 1)
    third.take_up(1)
    assert fourth.deaths(1, is_blamed=False) == 2, "somebody else has killed it"
    fourth.take_up(1)
    fourth.rest(1, 3)
    read(fourth, 1, b"GET")
    fourth.begin(1)
    assert fifth.deaths(1, is_blamed=True) == 1, "another request"


def test_no_other_frontends_life_counts() -> None:
    """As of a connection that was moved here."""
    first, second, third = lives(3)
    first.rest(0, 0)
    read(first, 0, b"GET")
    first.begin(0)
    assert third.deaths(0, is_blamed=True) == second.deaths(0, is_blamed=True) == 0


def test_who_dies_while_it_counts_is_counted_once_at_most() -> None:
    def begun() -> list[RequestJournal]:
        made = lives(3)
        made[0].rest(0, 0)
        read(made[0], 0, b"GET")
        made[0].begin(0)
        return made

    def takes_up(scene: list[RequestJournal]) -> Callable[[], object]:
        def act() -> None:
            scene[1].deaths(0, is_blamed=True)
            scene[1].take_up(0)

        return act

    for scene, was_aborted in every_abort(begun, takes_up, (request_journal,)):
        assert scene[2].deaths(0, is_blamed=True) in ((0, 1, 2) if was_aborted else (2,))
