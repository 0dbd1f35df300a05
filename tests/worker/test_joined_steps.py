"""Of which steps the scheduler is woken, over a real lane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorserve.actors.protocol.step import JOINED_S, Step
from actorserve.actors.worker.joined_steps import JoinedSteps
from tests.shm.post import Note, Post, drained

BRIEF, LONG = JOINED_S / 2, 2 * JOINED_S
OTHER_ROWS = [0, 1]


class Worker:
    """Its end of the lane, and a scheduler that sleeps."""

    def __init__(self, post: Post) -> None:
        self.post, self.scheduler, self.outbox = post, post.inbox(), post.outbox()
        self.waiting = 0  # plans in its own lanes
        self.joined = JoinedSteps(self.outbox, self)  # type: ignore[arg-type]
        self.step = 0
        assert self.scheduler.arm()

    def has_come(self) -> bool:
        return self.waiting > 0

    def run(self, seconds: float = BRIEF, behind: int = 1, rows: list[int] | None = None, fails: bool = False) -> int:
        """One step, `behind` which so many wait; how often the scheduler was woken, which sleeps again then."""
        self.step, self.waiting = self.step + 1, behind
        self.joined.begins(Step.make(1, self.step, [], rows or [0], [1] * len(rows or [0])))
        self.outbox.post(Note(self.step))
        if not fails:
            self.joined.ended(seconds)
        self.joined.flush()
        self.outbox.flush()
        self.joined.turn()
        return self.woken()

    def woken(self) -> int:
        if count := self.post.wakeups():
            self.scheduler.disarm()
            self.told = [note.number for note in drained(self.scheduler)]
            assert self.scheduler.arm()
        return count


@pytest.fixture
def worker() -> Iterator[Worker]:
    post = Post()
    yield Worker(post)
    post.close()


def test_brief_steps_are_told_of_two_at_a_time(worker: Worker) -> None:
    assert [worker.run() for _ in range(6)] == [1, 0, 1, 0, 1, 0]
    assert worker.told == [4, 5]
    assert worker.run() == 1 and worker.told == [6, 7]


def test_long_steps_are_told_of_as_they_end(worker: Worker) -> None:
    assert [worker.run(LONG) for _ in range(4)] == [1, 1, 1, 1]
    assert [worker.run(), worker.run(LONG)] == [0, 1]


def test_nothing_is_owed_where_no_step_waits(worker: Worker) -> None:
    """The worker would sleep on it."""
    assert [worker.run(behind=0) for _ in range(3)] == [1, 1, 1]


def test_a_message_that_is_no_step_does_not_put_it_off(worker: Worker) -> None:
    assert [worker.run(), worker.run()] == [1, 0]
    worker.waiting = 0  # it was handled, and nothing was answered
    worker.joined.turn()
    assert worker.woken() == 1 and worker.told == [2]


def test_a_step_of_other_rows_does_not_put_it_off(worker: Worker) -> None:
    """It may be a prompt, and take long: the wake-up comes before it is computed."""
    assert [worker.run(), worker.run()] == [1, 0]
    worker.joined.begins(Step.make(1, 3, [], OTHER_ROWS, [1, 300]))
    assert worker.woken() == 1 and worker.told == [2]


def test_of_a_step_that_fails_the_scheduler_hears_at_once(worker: Worker) -> None:
    assert [worker.run(), worker.run(fails=True)] == [1, 1]
    assert worker.told == [2]


def test_who_tells_nobody_owes_nothing(worker: Worker) -> None:
    """A member of a group that does not answer for it."""
    worker.waiting = 1
    for number in (1, 2):
        worker.joined.begins(Step.make(1, number, [], [0], [1]))
        worker.joined.ended(BRIEF)
        worker.joined.flush()
        worker.joined.turn()
    worker.waiting = 0
    worker.joined.turn()
    assert not worker.woken()
