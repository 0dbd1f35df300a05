"""Rows of slots' positions: in parts, again, by the next use; what a death of the writer leaves; whose memory it is."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable

import pytest

from actorserve.shm.layout import make_ref
from actorserve.shm.table import hidden_states
from actorserve.shm.table.hidden_states import HiddenStates
from actorserve.shm.table.vectors import KEPT_BYTES

from ..aborting import every_abort

SLOTS, NUMBERS, COLUMNS = 2, 40_000, 4
OLD, NEW = make_ref(4, 1), make_ref(5, 1)


def rows(count: int, first: float = 0.0) -> bytes:
    return array("f", (first + index for index in range(count * COLUMNS))).tobytes()


def new_states() -> tuple[HiddenStates, int]:
    fd = HiddenStates.create(SLOTS, NUMBERS)
    return HiddenStates(fd, SLOTS, NUMBERS), fd


def test_rows_come_in_parts_and_again() -> None:
    own, fd = new_states()
    seen = HiddenStates(os.dup(fd), SLOTS, NUMBERS)
    own.write_rows(OLD, 0, 3, COLUMNS, rows(3))
    own.write_rows(OLD, 3, 1, COLUMNS, rows(1, 90))
    assert seen.read(OLD) == (4, COLUMNS, rows(3) + rows(1, 90)) and seen.read(NEW) is None
    own.write_rows(OLD, 1, 1, COLUMNS, rows(1, 50))  # what is behind it stays
    assert seen.read(OLD) == (4, COLUMNS, rows(1) + rows(1, 50) + rows(3)[-16:] + rows(1, 90))
    own.write_rows(NEW, 0, 1, COLUMNS, rows(1, 7))
    assert seen.read(NEW) == (1, COLUMNS, rows(1, 7)) and seen.read(OLD) is None


def test_some_rows_are_read_alone() -> None:
    own, _ = new_states()
    assert own.read(OLD, 0, 1) is None
    own.write_rows(OLD, 0, 3, COLUMNS, rows(3))
    for first, count in ((2, 1), (0, 0), (1, 2)):
        assert own.read(OLD, first, count) == (count, COLUMNS, rows(3)[16 * first : 16 * (first + count)])
    assert own.read(OLD, 2, 5) == own.read(OLD, 2, 1) and own.read(OLD, 3, 1) == (0, COLUMNS, b"")
    assert own.read(NEW, 0, 1) is None


def test_what_does_not_fit_is_not_written() -> None:
    own, _ = new_states()
    for first, count, data in ((NUMBERS // COLUMNS, 1, rows(1)), (0, 2, rows(1))):
        with pytest.raises(ValueError, match="fit"):
            own.write_rows(OLD, first, count, COLUMNS, data)
    assert own.read(OLD) is None


def test_memory_goes_with_a_slot_that_had_some() -> None:
    own, fd = new_states()
    own.give_back(OLD)
    assert own.read(OLD) is None
    nothing = os.fstat(fd).st_blocks  # whoever looks takes a page
    own.write_rows(OLD, 0, KEPT_BYTES // 8, COLUMNS, rows(KEPT_BYTES // 8))
    assert (os.fstat(fd).st_blocks - nothing) * 512 > KEPT_BYTES
    own.give_back(OLD)
    assert own.read(OLD) is None and os.fstat(fd).st_blocks == nothing


class Scene:
    """A slot of which two rows are there, behind an earlier use's."""

    def __init__(self) -> None:
        self.own, self.fd = new_states()
        self.own.write_rows(OLD, 0, 4, COLUMNS, rows(4, 100))
        self.own.write_rows(NEW, 0, 2, COLUMNS, rows(2))

    def writing(self) -> Callable[[], object]:
        return lambda: self.own.write_rows(NEW, 2, 2, COLUMNS, rows(2, 8))


def test_the_writer_dies_between_any_two_stores() -> None:
    """What was told stays, and whoever computes the step again writes the same."""
    found = set()
    for scene, _ in every_abort(Scene, Scene.writing, (hidden_states,)):
        seen = HiddenStates(os.dup(scene.fd), SLOTS, NUMBERS)
        made = seen.read(NEW)
        assert made in ((2, COLUMNS, rows(2)), (4, COLUMNS, rows(4)))
        found.add(made[0])
        seen.write_rows(NEW, 2, 2, COLUMNS, rows(2, 8))
        assert seen.read(NEW) == (4, COLUMNS, rows(4))
        os.close(scene.fd)
    assert found == {2, 4}
