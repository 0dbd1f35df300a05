"""States by position: whose they are, and what a death of the writer leaves."""

from __future__ import annotations

import os

import pytest

from actorserve.shm.layout import make_ref
from actorserve.shm.table import mirostat
from actorserve.shm.table.mirostat import PLACES, MirostatStates

from ..aborting import every_abort

SLOTS = 3
OLD, NEW = make_ref(4, 1), make_ref(5, 1)


def new_states() -> MirostatStates:
    return MirostatStates(MirostatStates.create(SLOTS), SLOTS)


def test_another_process_reads_what_was_written() -> None:
    fd = MirostatStates.create(SLOTS)
    own, seen = MirostatStates(fd, SLOTS), MirostatStates(os.dup(fd), SLOTS)
    for position in range(200):
        own.write(NEW, position, position / 3)
    for position in range(200):
        assert seen.read(NEW, position) == (position / 3 if position >= 200 - PLACES else None)
    assert seen.read(OLD, 199) is None and seen.read(make_ref(5, 2), 199) is None
    with pytest.raises(IndexError):
        seen.read(make_ref(5, SLOTS), 0)


def test_a_death_leaves_what_was_there_or_nothing() -> None:
    """Of the place that is written; every other stays."""

    def make() -> MirostatStates:
        states = new_states()
        states.write(OLD, 7, 1.5)
        states.write(NEW, 8, 2.5)
        return states

    for states, was_aborted in every_abort(make, lambda made: lambda: made.write(NEW, 7, 9.5), (mirostat,)):
        assert states.read(NEW, 7) in ((None, 9.5) if was_aborted else (9.5,))
        assert states.read(OLD, 7) in (None, 1.5) and states.read(NEW, 8) == 2.5
