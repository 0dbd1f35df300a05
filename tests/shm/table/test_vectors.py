"""Numbers of slots: whose they are, what a death of the writer leaves, and what memory they take."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable

import pytest

from actorserve.shm.layout import make_ref
from actorserve.shm.table import vectors
from actorserve.shm.table.vectors import KEPT_BYTES, Vectors

from ..aborting import every_abort

SLOTS, NUMBERS = 3, 40_000
OLD, NEW = make_ref(4, 1), make_ref(5, 1)


def numbers(count: int, first: float = 0.0) -> bytes:
    return array("f", (first + index for index in range(count))).tobytes()


def new_vectors() -> tuple[Vectors, int]:
    fd = Vectors.create(SLOTS, NUMBERS)
    return Vectors(fd, SLOTS, NUMBERS), fd


def test_another_process_reads_what_was_written() -> None:
    own, fd = new_vectors()
    seen = Vectors(os.dup(fd), SLOTS, NUMBERS)
    assert seen.read(NEW) is None
    own.write(OLD, 1, 8, numbers(8))
    own.write(make_ref(1, 2), 3, 4, numbers(12))
    assert seen.read(OLD) == (1, 8, numbers(8)) and seen.read(NEW) is None
    own.write(NEW, 2, 2, numbers(4, 9))
    assert seen.read(NEW) == (2, 2, numbers(4, 9)) and seen.read(OLD) is None
    assert seen.read(make_ref(1, 2)) == (3, 4, numbers(12))


def test_what_does_not_fit_is_not_written() -> None:
    own, _ = new_vectors()
    own.write(OLD, 1, 2, numbers(2))
    for rows, columns, data in ((1, NUMBERS + 1, numbers(NUMBERS + 1)), (1, 3, numbers(2))):
        with pytest.raises(ValueError, match="fit"):
            own.write(OLD, rows, columns, data)
    with pytest.raises(IndexError):
        own.read(make_ref(1, SLOTS))
    assert own.read(OLD) == (1, 2, numbers(2))


def test_the_memory_of_a_matrix_goes_with_its_slot() -> None:
    own, fd = new_vectors()
    own.write(OLD, 1, 8, numbers(8))
    small = os.fstat(fd).st_blocks
    own.give_back(OLD)
    assert own.read(OLD) is not None  # it is kept: the next use needs the same
    own.write(NEW, 4, 10_000, numbers(NUMBERS))
    assert (os.fstat(fd).st_blocks - small) * 512 > KEPT_BYTES
    own.give_back(NEW)
    assert own.read(NEW) is None and os.fstat(fd).st_blocks <= small


@pytest.mark.usefixtures("keeps_pages")
def test_the_next_use_has_its_own_matrix_where_memory_stays() -> None:
    own, fd = new_vectors()
    own.write(OLD, 4, 10_000, numbers(NUMBERS))
    own.give_back(OLD)
    assert own.read(NEW) is None
    own.write(NEW, 2, 2, numbers(4, 9))
    assert own.read(NEW) == (2, 2, numbers(4, 9))
    os.close(fd)


class Scene:
    """A slot with an earlier use's numbers."""

    def __init__(self) -> None:
        self.own, self.fd = new_vectors()
        self.own.write(OLD, 1, 8, numbers(8))

    def writing(self) -> Callable[[], object]:
        return lambda: self.own.write(NEW, 2, 3, numbers(6, 5))


def test_the_writer_dies_between_any_two_stores() -> None:
    """A reader finds all of them or nothing, and whoever computes the sequence again writes all of them."""
    found = set()
    for scene, _ in every_abort(Scene, Scene.writing, (vectors,)):
        seen = Vectors(os.dup(scene.fd), SLOTS, NUMBERS)
        made = seen.read(NEW)
        found.add(made is None)
        assert made in (None, (2, 3, numbers(6, 5))) and seen.read(OLD) in (None, (1, 8, numbers(8)))
        seen.write(NEW, 2, 3, numbers(6, 5))
        assert seen.read(NEW) == (2, 3, numbers(6, 5))
        os.close(scene.fd)
    assert found == {True, False}
