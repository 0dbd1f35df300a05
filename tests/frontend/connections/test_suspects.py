"""Which requests are read again behind a death, and when."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

import pytest

from actorserve.actors.frontend.connections import suspects
from actorserve.actors.frontend.connections.suspects import Suspects
from actorserve.actors.runtime.in_flight import CALL, Ended
from actorserve.shm.journals.request_journal import RequestJournal


class Status:
    """What of the board is written."""

    def __init__(self, what: int = 0) -> None:
        self.in_flight, self.given_up = (what, 0), 0

    def set_in_flight(self, what: int, tries: int) -> None:
        self.in_flight = (what, tries)

    def give_up(self) -> None:
        self.given_up += 1


class Lives:
    """Of one frontend, with as many requests under way as are wanted."""

    def __init__(self, count: int) -> None:
        self.count, self.life = count, 1 << 32
        self.fd = RequestJournal.create(count, 1 << 16)
        journal = self.journal()
        for number in range(count):
            journal.rest(number, 0)
            journal.filled(number, 3)
            journal.begin(number)
        self.status = Status()

    def journal(self) -> RequestJournal:
        self.life += 1
        return RequestJournal(self.fd, self.count, 1 << 16, self.life)

    def next(self, ended: Ended) -> tuple[Suspects, list[int], list[int]]:
        """A successor; (it, whose requests it reads, whose it gives up)."""
        begun: list[int] = []
        made = Suspects(self.journal(), ended, self.status)  # type: ignore[arg-type]
        given_up = [number for number in range(self.count) if not made.judge(number, self._begin(begun, number))]
        return made, begun, given_up

    def _begin(self, begun: list[int], number: int) -> Callable[[], None]:
        return lambda: begun.append(number)


@pytest.fixture
def lives() -> Iterator[Lives]:
    made = Lives(4)
    yield made
    os.close(made.fd)


@pytest.mark.parametrize("ended", [Ended.OUTSIDE, Ended.REPLACED, Ended.NEVER])
async def test_all_are_read_at_once_where_no_request_is_to_blame(lives: Lives, ended: Ended) -> None:
    for _ in range(5):
        _, begun, given_up = lives.next(ended)
        assert (begun, given_up, lives.status.in_flight) == ([0, 1, 2, 3], [], (0, 0))


async def test_each_is_tried_alone_and_the_deadly_one_given_up(lives: Lives) -> None:
    made, begun, given_up = lives.next(Ended.DIED)
    assert (begun, given_up, lives.status.in_flight) == ([0], [], (CALL | 1, 2))
    made.settled(3)  # nobody asks for that yet
    made.settled(0)
    assert begun == [0, 1] and lives.status.in_flight == (CALL | 2, 2)
    _, begun, given_up = lives.next(Ended.DIED)  # of 1: who has begun before is not to blame
    assert begun == [0] and lives.status.in_flight == (CALL | 1, 2)
    made, begun, given_up = lives.next(Ended.OUTSIDE)
    assert not given_up and begun == [0]
    for number in range(4):
        made.settled(number)
    assert begun == [0, 1, 2, 3] and lives.status.in_flight == (0, 0) and not made.are_waiting


async def test_at_the_third_death_it_is_given_up(lives: Lives) -> None:
    for deaths in (1, 2):
        _, begun, given_up = lives.next(Ended.DIED)
        assert (begun, given_up, lives.status.in_flight) == ([0], [], (CALL | 1, deaths + 1))
    _, begun, given_up = lives.next(Ended.DIED)
    assert (begun, given_up, lives.status.given_up) == ([1], [0], 1)
    assert lives.status.in_flight == (CALL | 2, 2), "who has waited has cost no more lives"


async def test_one_that_hangs_alone_is_given_up_at_once(lives: Lives) -> None:
    _, begun, given_up = lives.next(Ended.HUNG)
    assert (begun, given_up) == ([0], [])
    _, begun, given_up = lives.next(Ended.HUNG)
    assert (begun, given_up, lives.status.given_up) == ([1], [0], 1)


async def test_who_takes_long_keeps_nobody_waiting(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "TRIAL_S", 0.0)
    made, begun, _ = lives.next(Ended.DIED)
    async with asyncio.timeout(60):
        while made.are_waiting:
            await asyncio.sleep(0)
    assert begun == [0, 1, 2, 3]


async def test_who_is_under_way_is_not_to_blame_for_one_that_is_tried(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a long upload, which nobody waits for: it is there at each death of another's."""
    for _ in range(2):
        made, begun, given_up = lives.next(Ended.DIED)
        made._end()  # the first has had its time
        assert (begun, given_up) == ([0, 1], [])
    _, begun, given_up = lives.next(Ended.DIED)
    assert (begun, given_up) == ([0], [1])


async def test_what_was_tried_is_forgotten_by_who_tries_nothing(lives: Lives) -> None:
    lives.next(Ended.DIED)
    Suspects(lives.journal(), Ended.DIED, lives.status)  # type: ignore[arg-type]  # its clients have gone
    assert lives.status.in_flight == (0, 0)
