"""A slot as its detokenizer follows it, against what the table itself says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorserve.shm.segment import Segment
from actorserve.shm.table.table import RequestTable, table_bytes
from actorserve.shm.table.token_cursor import TokenCursor

SLOT = 1


@pytest.fixture
def table() -> Iterator[RequestTable]:
    segment = Segment.create(table_bytes(3, 64, 16), "follower")
    yield RequestTable.create(segment, 0, 3, 64, 16)
    segment.close()


def opened(table: RequestTable, slot: int = SLOT) -> int:
    ref = table.open_slot(slot, b"params", 1)
    table.write_prompt(ref, [5, 6], b"", 9)
    return ref


def test_it_sees_what_the_scheduler_tells(table: RequestTable) -> None:
    ref = opened(table)
    follower = TokenCursor(table, ref)
    assert follower.look() == (0, 0)
    table.append(ref, [7, 8, 9])
    assert follower.look() == (3, 0) == (table.generated(ref), table.finish(ref))
    table.set_finish(ref, 2)
    assert follower.look() == (3, 2) == (table.generated(ref), table.finish(ref))


def test_its_neighbours_are_others(table: RequestTable) -> None:
    ref, others = opened(table), [opened(table, slot) for slot in (SLOT - 1, SLOT + 1)]
    for other in others:
        table.append(other, [1])
        table.set_finish(other, 1)
    assert TokenCursor(table, ref).look() == (0, 0)
    TokenCursor(table, ref).set_text(4)
    assert [table.text(other) for other in others] == [0, 0] and table.text(ref) == 4


def test_what_an_earlier_use_has_left_is_not_seen(table: RequestTable) -> None:
    before = opened(table)
    table.append(before, [7])
    table.set_finish(before, 1)
    TokenCursor(table, before).set_text(1)
    ref = opened(table)
    assert TokenCursor(table, before).look() is None
    assert TokenCursor(table, ref).look() == (0, 0) and table.text(ref) == 0
