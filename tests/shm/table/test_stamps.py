"""Stamps: each use of a slot has its own, though nobody resets them."""

from __future__ import annotations

import pytest

from actorserve.shm.table.layout import (
    ACCEPTED,
    CANCEL,
    CONTROL_WORDS,
    DRAFTED,
    FINISH,
    GENERATION,
    PROMPT,
    STOP,
    TEXT,
    TOKENS,
)
from actorserve.shm.table.stamps import MOST_SETBACKS, Life, Stamp, Stamps, drafts
from actorserve.shm.table.table import make_ref

from .table_maker import new_table


def test_the_way_of_a_sequence() -> None:
    table = new_table(0)
    stamps = Stamps(table)
    ref = table.open_slot(2, b"", 1000)
    assert stamps.life(ref) == Life(1000, {}, 0, 0)
    for number, stamp in enumerate(Stamp, 1001):
        assert stamps.get(ref, stamp) == 0
        stamps.set(ref, stamp, number)
    expected = {stamp: number for number, stamp in enumerate(Stamp, 1001)}
    assert stamps.life(ref) == Life(1000, expected, 0, 0)
    assert all(stamps.get(ref, stamp) == now for stamp, now in expected.items())


def test_a_new_use_has_none() -> None:
    table = new_table(0)
    stamps = Stamps(table)
    old = table.open_slot(1, b"", 1000)
    for stamp in Stamp:
        stamps.set(old, stamp, 1500)
    stamps.set_back(old, preemptions=3, deaths=2)
    new = table.open_slot(1, b"", 2000)
    assert stamps.life(old) is None and stamps.life(new) == Life(2000, {}, 0, 0)
    assert stamps.set_first(new, Stamp.ADMITTED, 2500) and stamps.get(new, Stamp.ADMITTED) == 2500


def test_the_first_time_stays() -> None:
    table = new_table(0)
    stamps, ref = Stamps(table), table.open_slot(0, b"", 10)
    assert stamps.set_first(ref, Stamp.SCHEDULED, 20) and not stamps.set_first(ref, Stamp.SCHEDULED, 30)
    assert stamps.get(ref, Stamp.SCHEDULED) == 20


def test_setbacks_are_counted() -> None:
    table = new_table(0)
    stamps, ref = Stamps(table), table.open_slot(0, b"", 10)
    for _ in range(3):
        stamps.set_back(ref, preemptions=1)
    stamps.set_back(ref, deaths=1)
    life = stamps.life(ref)
    assert life is not None and (life.preemptions, life.deaths) == (3, 1)
    stamps.set_back(ref, preemptions=MOST_SETBACKS + 5, deaths=MOST_SETBACKS + 5)
    assert stamps.life(ref) == Life(10, {}, MOST_SETBACKS, MOST_SETBACKS), "neither runs over into the other"


def test_a_slot_that_was_never_used() -> None:
    stamps = Stamps(new_table(0))
    assert stamps.life(make_ref(1, 0)) is None
    with pytest.raises(IndexError):
        stamps.life(make_ref(1, 10_000))


def test_drafts_are_of_one_use() -> None:
    words = [0] * CONTROL_WORDS
    words[GENERATION], words[DRAFTED], words[ACCEPTED] = 5, 5 << 32 | 12, 5 << 32 | 3
    assert drafts(words) == (12, 3)
    words[GENERATION] = 6
    assert drafts(words) == (0, 0)


def test_each_stamp_lies_in_its_writers_line() -> None:
    lines = {
        0: {Stamp.FIRST_TOLD, Stamp.END_TOLD},
        1: {Stamp.RENDER_BEGUN, Stamp.RENDERED},
        2: {Stamp.ADMITTED, Stamp.SCHEDULED, Stamp.FIRST_TOKEN, Stamp.LAST_TOKEN},
    }
    assert {stamp: stamp // 8 for stamp in Stamp} == {stamp: line for line, some in lines.items() for stamp in some}
    assert GENERATION // 8 == CANCEL // 8 == 0 and PROMPT // 8 == 1
    assert TOKENS // 8 == FINISH // 8 == 2 and TEXT // 8 == STOP // 8 == 3 and CONTROL_WORDS == 32
