"""The record of what was handed over: what a successor finds after its frontend has died anywhere."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from actorserve.shm.journals import byte_ring, response_journal
from actorserve.shm.journals.response_journal import ANSWER_STATES, MOST_REFS, RING, ResponseJournal

from ..aborting import every_abort


def new_answers(count: int) -> ResponseJournal:
    fd = ResponseJournal.create(count)
    try:
        return ResponseJournal(fd, count)
    finally:
        os.close(fd)


@pytest.fixture
def fd() -> Iterator[int]:
    file = ResponseJournal.create(3)
    yield file
    os.close(file)


@pytest.fixture
def answers(fd: int) -> ResponseJournal:
    return ResponseJournal(fd, 3)


def test_what_the_kernel_did_not_take_is_found(answers: ResponseJournal) -> None:
    answers.begin(1, 50)
    assert answers.untouched(1) and answers.unsent(1, 50) == b"" and answers.streamed(1) is None
    answers.commit(1, b"head", False)
    answers.commit(1, b"body", False)
    assert not answers.untouched(1) and not answers.is_complete(1)
    assert [answers.unsent(1, written) for written in (50, 52, 54, 58)] == [b"headbody", b"adbody", b"body", b""]
    assert answers.unsent(1, 59) is None and answers.unsent(0, 58) is None
    answers.commit(1, b"end", True)
    assert answers.is_complete(1) and answers.unsent(1, 58) == b"end"
    answers.begin(1, 61)
    assert answers.untouched(1) and not answers.is_complete(1)


def test_states_follow_what_was_committed(answers: ResponseJournal, fd: int) -> None:
    answers.begin(2, 0)
    answers.stream(2, [7, 1 << 62 | 5], 1 << 63 | 3, 99)
    assert not answers.is_replayed(2)
    answers.stream(1, [7], 3, 99, True)
    assert answers.is_replayed(1)
    answers.forget(1)
    assert answers.streamed(2) == ([7, 1 << 62 | 5], [0] * (2 + ANSWER_STATES), 1 << 63 | 3, 99)
    answers.commit(2, b"a", False, 1, 4)
    answers.commit(2, b"b", False)
    answers.commit(2, b"c", False, 0, 1 << 63 | 2)
    answers.commit(2, b"d", False, 3, 1)
    assert answers.streamed(2) == ([7, 1 << 62 | 5], [1 << 63 | 2, 4, 0, 1], 1 << 63 | 3, 99)
    assert answers.all_refs(fd) == [7, 1 << 62 | 5]
    answers.forget(2)
    assert answers.streamed(2) is None and answers.all_refs(fd) == []


def test_the_ring_turns(answers: ResponseJournal) -> None:
    rng = random.Random(0)
    answers.begin(0, 7)
    sent, last = 7, b"?" * 7  # how many bytes, and the last of them
    for _ in range(400):
        data = rng.randbytes(rng.choice([1, 100, 5000, RING - 1, RING, RING + 9]))
        answers.commit(0, data, False)
        sent, last = sent + len(data), (last + data)[-RING:]
        unsent = rng.randrange(min(sent - 6, RING + 1))
        assert answers.unsent(0, sent - unsent) == last[len(last) - unsent :]
        assert sent <= RING or answers.unsent(0, sent - RING - 1) is None
    assert answers.untouched(1)


def test_as_many_slots_as_there_is_room_for(answers: ResponseJournal) -> None:
    for number in range(3):
        answers.begin(number, 0)
        answers.stream(number, range(1, MOST_REFS + 1), 1, 2)
    answers.commit(1, b"x", False, MOST_REFS + ANSWER_STATES - 1, 5)
    refs = list(range(1, MOST_REFS + 1))
    assert answers.streamed(0) == answers.streamed(2) == (refs, [0] * (MOST_REFS + ANSWER_STATES), 1, 2)
    assert answers.streamed(1) == (refs, [0] * (MOST_REFS + ANSWER_STATES - 1) + [5], 1, 2)


def test_numbers_beyond_are_nobodys(answers: ResponseJournal, fd: int) -> None:
    for number in range(3):
        answers.stream(number, [number + 1], 1, 2)
    for number in range(3, 200):
        answers.begin(number, 0)
        answers.forget(number)
    assert answers.all_refs(fd) == [1, 2, 3]


def test_who_looks_for_streams_gives_no_record_memory(answers: ResponseJournal, fd: int) -> None:
    assert answers.all_refs(fd) == [] and os.fstat(fd).st_blocks == 0
    answers.stream(1, [5], 1, 2)
    held = os.fstat(fd).st_blocks
    assert answers.all_refs(fd) == [5] and os.fstat(fd).st_blocks == held > 0
    assert ResponseJournal(fd, 1).all_refs(fd) == [], "what is beyond is nobody's"


def test_a_death_before_any_bytecode_leaves_a_step_done_or_not_begun() -> None:
    """The bytes and the state of a step count together, or not at all."""
    steps = [(b"one", 0, 3), (b"two!", 1, 4), (b"three", 0, 8)]
    sums = [0, 3, 7, 12]

    class Scene:
        def __init__(self) -> None:
            self.answers = new_answers(1)
            self.answers.begin(0, 0)
            self.answers.stream(0, [5, 6], 1, 2)
            self.done = 0  # steps of which commit has returned: whatever it said may be in the kernel

        def live(self) -> None:
            for data, choice, state in steps:
                self.answers.commit(0, data, False, choice, state)
                self.done += 1

    seen = set()
    for scene, _ in every_abort(Scene, lambda scene: scene.live, (response_journal, byte_ring)):
        handed = b"".join(data for data, *_ in steps)
        unsent = scene.answers.unsent(0, 0)
        assert unsent is not None and len(unsent) in sums and handed.startswith(unsent)
        count = sums.index(len(unsent))
        assert scene.done <= count <= scene.done + 1
        expected = [0, 0]
        for _, choice, state in steps[:count]:
            expected[choice] = state
        found = scene.answers.streamed(0)
        assert found is not None and found[1][:2] == expected, (scene.done, count)
        seen.add((scene.done, count))
    assert seen == {(done, count) for done in range(4) for count in (done, done + 1) if count < 4}


def test_a_death_while_a_record_is_begun_leaves_nothing_of_the_last_answer() -> None:
    class Scene:
        def __init__(self) -> None:
            self.answers = new_answers(1)
            self.answers.begin(0, 0)
            self.answers.stream(0, [5], 1, 2)
            self.answers.commit(0, b"whole", True, 0, 5)
            self.answers.forget(0)

        def live(self) -> None:
            self.answers.begin(0, 5)
            self.answers.stream(0, [9, 8], 3, 4)

    for scene, _ in every_abort(Scene, lambda scene: scene.live, (response_journal, byte_ring)):
        found = scene.answers.streamed(0)
        assert found is None or found == ([9, 8], [0] * (2 + ANSWER_STATES), 3, 4)
        assert scene.answers.unsent(0, 5) == b""
