"""The words about a start: what each phase took, whose life it was, and a death at any line of their beginning."""

from __future__ import annotations

import pytest

from actorserve.shm.board import startup
from actorserve.shm.board.startup import PHASES, PhaseWriter, phases_bytes, read_phases
from actorserve.shm.segment import Segment

from ..aborting import every_abort


def new_segment() -> Segment:
    return Segment.create(2 * phases_bytes(), "test")


def test_a_phase_lasts_from_the_end_of_the_one_before() -> None:
    segment = new_segment()
    writer = PhaseWriter(segment, phases_bytes(), 100)
    assert read_phases(segment, phases_bytes()) == {}
    writer.end(0, 150)
    writer.end(3, 120)  # the order is that of their ends
    assert read_phases(segment, phases_bytes()) == {3: 20, 0: 30}
    writer.end(0, 170)  # it goes on
    writer.end(PHASES - 1, 171)
    assert list(read_phases(segment, phases_bytes()).items()) == [(3, 20), (0, 50), (PHASES - 1, 1)]
    assert read_phases(segment, 0) == {}  # the neighbour's


def test_an_earlier_life_counts_no_more() -> None:
    segment = new_segment()
    PhaseWriter(segment, 0, 100).end(1, 110)
    assert read_phases(segment, 0, 100) == {1: 10}
    assert read_phases(segment, 0, 200) == {}  # the next one has not written anything yet
    PhaseWriter(segment, 0, 200).end(2, 205)
    assert read_phases(segment, 0, 200) == {2: 5} and read_phases(segment, 0, 100) == {}


@pytest.mark.parametrize("number", [-1, PHASES])
def test_there_are_so_many(number: int) -> None:
    with pytest.raises(IndexError, match=f"there are {PHASES} phases"):
        PhaseWriter(new_segment(), 0, 1).end(number, 2)


def test_whoever_dies_at_its_beginning_leaves_nothing_wrong() -> None:
    def make() -> Segment:
        segment = new_segment()
        writer = PhaseWriter(segment, 0, 100)
        for number in range(PHASES):
            writer.end(number, 110 + number)
        return segment

    old = read_phases(make(), 0)
    for segment, _ in every_abort(make, lambda segment: lambda: PhaseWriter(segment, 0, 200), (startup,)):
        assert read_phases(segment, 0) in ({}, old)
        assert read_phases(segment, 0, 200) == {}
        PhaseWriter(segment, 0, 300).end(0, 301)
        assert read_phases(segment, 0) == {0: 1}


def test_a_reader_between_two_lives_sees_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor begins while the words are read."""
    segment = new_segment()
    PhaseWriter(segment, 0, 100).end(0, 150)

    def begin() -> None:
        monkeypatch.setattr(startup, "load_fence", lambda: None)
        PhaseWriter(segment, 0, 200).end(1, 201)

    monkeypatch.setattr(startup, "load_fence", begin)
    assert read_phases(segment, 0) == {}
    assert read_phases(segment, 0) == {1: 1}
