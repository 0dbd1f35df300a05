"""Histograms: where values are counted, who goes on counting, and what a reader sees meanwhile."""

from __future__ import annotations

import random
import threading

import pytest

from actorserve.shm import histogram as module
from actorserve.shm.histogram import Counted, Histogram, histogram_bytes
from actorserve.shm.segment import Segment

from .aborting import every_abort

BOUNDS = (0, 10, 20, 50)


def new_segment() -> Segment:
    return Segment.create(3 * histogram_bytes(BOUNDS), "test")


def test_a_bound_belongs_to_its_own_count() -> None:
    histogram = Histogram(new_segment(), 0, BOUNDS)
    for value in (0, 1, 10, 11, 20, 50, 51, 10**15):
        histogram.observe(value)
    assert histogram.read() == Counted([1, 2, 2, 1, 2], 143 + 10**15) and histogram.read().total == 8


def test_many_at_once() -> None:
    histogram = Histogram(new_segment(), 0, BOUNDS)
    histogram.observe(15, 7)
    histogram.observe(60, 2)
    assert histogram.read() == Counted([0, 0, 7, 0, 2], 225)


def test_a_clock_that_went_back_is_no_time() -> None:
    histogram = Histogram(new_segment(), 0, BOUNDS)
    histogram.observe(-5)
    assert histogram.read() == Counted([1, 0, 0, 0, 0], 0)


def test_neighbours_do_not_meet() -> None:
    segment, rng = new_segment(), random.Random(1)
    size = histogram_bytes(BOUNDS)
    histograms = [Histogram(segment, place * size, BOUNDS) for place in range(3)]
    expected = [[0] * 5 for _ in histograms]
    for _ in range(300):
        which, value = rng.randrange(3), rng.randrange(80)
        histograms[which].observe(value)
        expected[which][sum(value > bound for bound in BOUNDS)] += 1
    assert [histogram.read().counts for histogram in histograms] == expected


def test_a_successor_goes_on() -> None:
    segment = new_segment()
    Histogram(segment, 64, BOUNDS).observe(5)
    successor = Histogram(segment, 64, BOUNDS)
    assert successor.read() == Counted([0, 1, 0, 0, 0], 5)
    successor.observe(5)
    assert successor.read() == Counted([0, 2, 0, 0, 0], 10)


def test_a_death_never_sets_anything_back() -> None:
    def scene() -> Histogram:
        histogram = Histogram(new_segment(), 0, BOUNDS)
        histogram.observe(15, 3)
        return histogram

    before = Counted([0, 0, 3, 0, 0], 45)
    seen = set()
    for histogram, _ in every_abort(scene, lambda histogram: lambda: histogram.observe(30), (module,)):
        now = histogram.read()
        assert all(new >= old for new, old in zip(now.counts, before.counts, strict=True)) and now.sum >= before.sum
        seen.add((now.total, now.sum))
    assert seen == {(3, 45), (4, 45), (4, 75)}


def test_a_reader_sees_counts_that_only_rise() -> None:
    histogram = Histogram(new_segment(), 0, BOUNDS)

    def write() -> None:
        for value in range(20_000):
            histogram.observe(value % 80)

    writer = threading.Thread(target=write)
    writer.start()
    last = histogram.read()
    while writer.is_alive():
        now = histogram.read()
        assert all(new >= old for new, old in zip(now.counts, last.counts, strict=True)) and now.sum >= last.sum
        last = now
    writer.join()
    assert histogram.read().total == 20_000


def test_those_of_several_writers_are_added() -> None:
    assert Counted([1, 2], 3) + Counted([10, 20], 30) == Counted([11, 22], 33)


@pytest.mark.parametrize(("offset", "bounds"), [(8, BOUNDS), (-64, BOUNDS), (1 << 20, BOUNDS)])
def test_places_that_cannot_be(offset: int, bounds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no histogram"):
        Histogram(new_segment(), offset, bounds)


@pytest.mark.parametrize("bounds", [(), (5, 5), (5, 4), (-1, 3)])
def test_bounds_that_cannot_be(bounds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rise"):
        Histogram(new_segment(), 0, bounds)
