"""The ring of events: nothing false is ever read, whenever its writer dies and however fast it is."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from actorserve.shm.layout import CACHE_LINE
from actorserve.shm.rings import trace_ring
from actorserve.shm.rings.trace_ring import EVENT, Event, TraceWriter, read_trace, trace_bytes
from actorserve.shm.segment import Segment

from ..aborting import every_abort

OFFSET = 128
FEW = 8


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_ring, "EVENTS", FEW)


class Scene:
    """A ring in which some events are."""

    def __init__(self, events: int = 0) -> None:
        self.segment = Segment.create(OFFSET + trace_bytes(), "test")
        self.writer = TraceWriter(self.segment, OFFSET)
        for number in range(1, events + 1):
            add(self.writer, number)

    def numbers(self) -> list[int]:
        """Of the events that are read, each checked for being whole."""
        return [checked(event) for event in read_trace(self.segment, OFFSET)]


def add(writer: TraceWriter, number: int) -> None:
    writer.add(number, number % 250, 3 * number, 5 * number, 7 * number)


def checked(event: Event) -> int:
    number = event.at_ns
    assert event == Event(number, number % 250, 7 * number, 3 * number, 5 * number)
    return number


def test_nothing_is_there_at_first() -> None:
    assert Scene().numbers() == []


def test_events_are_read_as_they_were_written() -> None:
    scene = Scene(5)
    assert scene.numbers() == [1, 2, 3, 4, 5]
    scene.writer.add(2**63, 255, 2**64 - 1, 2**64 - 1, 2**56 - 1)
    assert read_trace(scene.segment, OFFSET)[-1] == Event(2**63, 255, 2**56 - 1, 2**64 - 1, 2**64 - 1)


@pytest.mark.parametrize("events", [FEW - 1, FEW, FEW + 1, 3 * FEW + 2])
def test_the_last_ones_are_kept(few: None, events: int) -> None:
    numbers = Scene(events).numbers()
    assert numbers == list(range(1, events + 1))[-(FEW - 1) :]


def test_a_successor_goes_on_behind_its_predecessor(few: None) -> None:
    scene = Scene(3)
    scene.writer = TraceWriter(scene.segment, OFFSET)
    add(scene.writer, 4)
    assert scene.numbers() == [1, 2, 3, 4]


@pytest.mark.parametrize("events", [0, 3, FEW, FEW + 3])
def test_a_death_before_any_bytecode_loses_one_event_at_most(few: None, events: int) -> None:
    outcomes = set()
    for scene, aborted in every_abort(
        lambda: Scene(events), lambda s: lambda: add(s.writer, events + 1), (trace_ring,), 5
    ):
        before = list(range(1, events + 1))
        numbers = scene.numbers()
        assert numbers in (before[-(FEW - 1) :], [*before, events + 1][-(FEW - 1) :])
        assert aborted or numbers[-1] == events + 1
        outcomes.add((numbers or [0])[-1])
        add(TraceWriter(scene.segment, OFFSET), (numbers or [0])[-1] + 1)
        assert scene.numbers()[-1] == (numbers or [0])[-1] + 1
    assert outcomes == {events, events + 1}


def test_what_is_half_overwritten_is_not_read(few: None) -> None:
    """A writer is stopped between its stores: the event in whose place it writes is gone."""
    scene = Scene(FEW + 3)
    EVENT.pack_into(scene.segment.map, OFFSET + CACHE_LINE + 3 * EVENT.size, 999, 1, 2, 3)
    assert scene.numbers() == list(range(5, FEW + 4))


def overtake(scene: Scene, by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many events are written while a reader copies, before its second look."""

    def write() -> None:
        for number in range(21, 21 + by):
            add(scene.writer, number)

    fences: list[Callable[[], None]] = [lambda: None, write]
    monkeypatch.setattr(trace_ring, "load_fence", lambda: fences.pop(0)())


@pytest.mark.parametrize(("by", "left"), [(0, 7), (1, 6), (6, 1), (7, 0), (8, 0), (50, 0)])
def test_a_reader_that_is_overtaken_drops_what_may_be_false(
    few: None, monkeypatch: pytest.MonkeyPatch, by: int, left: int
) -> None:
    scene = Scene(20)
    overtake(scene, by, monkeypatch)
    assert scene.numbers() == list(range(1, 21))[20 - left :]


def test_beside_a_busy_writer(few: None) -> None:
    scene, ended = Scene(), threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            add(scene.writer, number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        last = 0
        for _ in range(3000):
            numbers = scene.numbers()
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
            last = max([last, *numbers])
    finally:
        ended.set()
        writer.join()
    assert last > FEW


@pytest.mark.parametrize("offset", [-64, 8, 1 << 40])
def test_where_no_ring_can_lie(offset: int) -> None:
    scene = Scene()
    with pytest.raises(ValueError, match="no trace can lie"):
        read_trace(scene.segment, offset)
    with pytest.raises(ValueError, match="no trace can lie"):
        TraceWriter(scene.segment, offset)
