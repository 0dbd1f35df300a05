"""The request table: every accessor, generations, misuse."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pytest

from actorserve.shm.segment import Segment
from actorserve.shm.table.layout import LAST_GENERATION
from actorserve.shm.table.table import RequestTable, generation_of, make_ref, slot_of

from .table_maker import BLOCK, MAX_TOKENS, PARAMS, SLOTS, hashes_of, new_table, other_view


def test_refs() -> None:
    ref = make_ref(7, 3)
    assert ref == 7 << 32 | 3 and slot_of(ref) == 3 and generation_of(ref) == 7


@pytest.mark.parametrize("offset", [0, 64, 8192])
def test_the_way_of_a_sequence(offset: int) -> None:
    table = new_table(offset)
    seen = other_view(table)
    ref = table.open_slot(3, b"params", 123)
    assert slot_of(ref) == 3 and generation_of(ref) == 1
    assert seen.is_current(ref) and seen.params(ref) == b"params" and seen.arrival_ns(ref) == 123
    assert seen.prompt_length(ref) is None and seen.limit(ref) == 0 and seen.hashes(ref) == b""
    table.write_prompt(ref, list(range(20)), hashes_of(2), 15)
    assert seen.prompt_length(ref) == 20 and seen.limit(ref) == 15 and seen.hashes(ref) == hashes_of(2)
    assert seen.generated(ref) == 0 and seen.cached(ref) == 0 and seen.finish(ref) == 0
    table.set_cached(ref, 16)
    table.append(ref, [100])
    table.append(ref, [101, 102])
    table.set_finish(ref, 2)
    assert seen.cached(ref) == 16 and seen.generated(ref) == 3 and seen.finish(ref) == 2
    assert list(seen.token_ids(ref, 18, 23)) == [18, 19, 100, 101, 102]
    assert seen.text(ref) == seen.stop(ref) == 0
    table.set_text(ref, 3)
    table.set_stop(ref, 2)
    assert seen.text(ref) == 3 and seen.stop(ref) == 2
    assert not seen.is_cancelled(ref)
    table.cancel(ref)
    assert seen.is_cancelled(ref)


def test_a_new_use_starts_with_nothing() -> None:
    table = new_table()
    old = table.open_slot(0, b"old", 1)
    table.write_prompt(old, [1, 2, 3], b"", 5)
    table.append(old, [4])
    for write in (table.set_cached, table.set_finish, table.set_text, table.set_stop):
        write(old, 1)
    table.cancel(old)
    new = table.open_slot(0, b"newer", 2)
    assert generation_of(new) == generation_of(old) + 1
    for ref in (old, new):
        assert table.prompt_length(ref) is (3 if ref == old else None)
    assert table.is_current(new) and not table.is_current(old)
    assert table.params(new) == b"newer" and table.params(old) == b""
    assert not table.is_cancelled(new)
    for read in (table.limit, table.generated, table.cached, table.finish, table.text, table.stop):
        assert read(new) == 0, read


def test_a_rendition_that_the_next_use_is_writing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sequence that has ended, for a worker who reads it late."""
    table = new_table()
    seen = other_view(table)
    old = table.open_slot(0, b"", 1)
    table.write_prompt(old, [1], b"", 5, b"an old one")
    assert seen.rendition(old) == b"an old one"
    memory = seen.segment.map

    class Overwritten:
        """Its slot is taken anew by the time that the bytes are read."""

        def __getitem__(self, place: slice) -> bytes:
            new = table.open_slot(0, b"", 2)
            table.write_prompt(new, [1], b"", 5, b"a new")
            return memory[place]

    monkeypatch.setattr(seen.segment, "map", Overwritten())
    assert seen.rendition(old) == b""
    monkeypatch.undo()
    assert seen.rendition(make_ref(generation_of(old) + 1, 0)) == b"a new"


def test_slots_do_not_touch_each_other() -> None:
    table = new_table()
    refs = [table.open_slot(slot, bytes([slot]) * PARAMS, slot) for slot in range(SLOTS)]
    for ref in refs:
        slot = slot_of(ref)
        table.write_prompt(ref, [slot] * MAX_TOKENS, bytes([slot]) * 16 * (MAX_TOKENS // BLOCK), slot + 1)
    for ref in refs:
        slot = slot_of(ref)
        assert table.params(ref) == bytes([slot]) * PARAMS
        assert list(table.token_ids(ref, 0, MAX_TOKENS)) == [slot] * MAX_TOKENS
        assert table.hashes(ref) == bytes([slot]) * 16 * (MAX_TOKENS // BLOCK)
        assert table.limit(ref) == slot + 1 and table.arrival_ns(ref) == slot


IDS = [5, -1, 2**31 - 1]


@pytest.mark.parametrize("ids", [IDS, tuple(IDS), array("i", IDS).tobytes(), memoryview(array("i", IDS))])
def test_prompts_of_every_type(ids: Sequence[int] | bytes | memoryview) -> None:
    table = new_table()
    ref = table.open_slot(1, b"", 0)
    table.write_prompt(ref, ids, b"", 1)
    assert list(table.token_ids(ref, 0, 3)) == IDS


def test_an_empty_prompt_is_a_prompt() -> None:
    table = new_table()
    ref = table.open_slot(1, b"", 0)
    table.write_prompt(ref, [], b"", 1)
    assert table.prompt_length(ref) == 0 and table.hashes(ref) == b""


def test_hashes_may_be_left_out() -> None:
    table = new_table()
    old = table.open_slot(1, b"", 0)
    table.write_prompt(old, [1] * 16, hashes_of(2), 1)
    ref = table.open_slot(1, b"", 0)
    table.write_prompt(ref, [1] * 16, b"", 1)
    assert table.hashes(ref) == b"", "not those of the slot's former use"


def test_another_load_of_an_adapter_has_other_hashes() -> None:
    table = new_table()
    ref = table.open_slot(1, b"", 0)
    table.write_prompt(ref, [1] * 16, hashes_of(2), 1)
    assert table.load(ref) == 0 and table.hashes(ref)
    table.set_load(ref, 5)
    assert table.load(ref) == 5 and table.hashes(ref) == b""
    assert table.load(table.open_slot(1, b"", 0)) == 0, "it was the former use's"


def test_token_ids_are_a_view() -> None:
    table = new_table()
    ref = table.open_slot(0, b"", 0)
    table.write_prompt(ref, [1, 2], b"", 9)
    view = table.token_ids(ref, 0, 4)
    table.append(ref, [3, 4])
    assert view.format == "i" and list(view) == [1, 2, 3, 4]


def test_recovery_scan() -> None:
    table = new_table()
    assert table.current_refs(0, SLOTS) == []
    first = table.open_slot(1, b"", 0)
    second = [table.open_slot(3, b"", 0) for _ in range(2)][-1]
    assert table.current_refs(0, SLOTS) == [first, second]
    assert table.current_refs(2, 2) == [second] and table.current_refs(2, 1) == []
    assert table.current_refs(3, 1000) == [second]


def test_generations_stay_below_31_bits_and_are_never_zero() -> None:
    table = new_table()
    table.segment.words[table.control_word(2)] = LAST_GENERATION - 1
    generations = [generation_of(table.open_slot(2, b"", 0)) for _ in range(3)]
    assert generations == [LAST_GENERATION, 1, 2]


def misuses(table: RequestTable, ref: int) -> list[tuple[type[Exception], Callable[[], object]]]:
    stale = make_ref(9, 0)
    beyond = make_ref(1, SLOTS)
    return [
        (ValueError, lambda: table.open_slot(0, bytes(PARAMS + 1), 0)),
        (IndexError, lambda: table.open_slot(SLOTS, b"", 0)),
        (IndexError, lambda: table.open_slot(-1, b"", 0)),
        (ValueError, lambda: table.write_prompt(ref, [0] * (MAX_TOKENS + 1), b"", 1)),
        (ValueError, lambda: table.write_prompt(ref, [0] * 7, bytes(16), 1)),
        (ValueError, lambda: table.write_prompt(ref, [0] * 8, bytes(15), 1)),
        (OverflowError, lambda: table.write_prompt(ref, [1 << 31], b"", 1)),
        (ValueError, lambda: table.append(ref, [0] * (MAX_TOKENS - 1))),
        (ValueError, lambda: table.append(stale, [1])),
        (ValueError, lambda: table.set_text(ref, -1)),
        (ValueError, lambda: table.set_text(ref, 1 << 32)),
        (IndexError, lambda: table.finish(beyond)),
        (IndexError, lambda: table.set_finish(beyond, 1)),
        (IndexError, lambda: table.is_current(beyond)),
        (IndexError, lambda: table.token_ids(ref, 0, MAX_TOKENS + 1)),
        (IndexError, lambda: table.token_ids(ref, 3, 2)),
        (IndexError, lambda: table.current_refs(SLOTS, 1)),
    ]


@pytest.mark.parametrize("number", range(17))
def test_misuse_raises_and_changes_nothing(number: int) -> None:
    table = new_table()
    ref = table.open_slot(0, b"params", 0)
    table.write_prompt(ref, [1, 2], b"", 9)
    before = bytes(table.segment.map)
    error, misuse = misuses(table, ref)[number]
    with pytest.raises(error):
        misuse()
    assert bytes(table.segment.map) == before


def test_attaching_to_what_is_no_table() -> None:
    table = new_table()
    with pytest.raises(ValueError, match="no request table"):
        RequestTable.attach(table.segment, 64)
    table.segment.words[1] += 1
    with pytest.raises(ValueError, match="version"):
        RequestTable.attach(table.segment)


@pytest.mark.parametrize("sizes", [(0, 8, 8, 64), (1, 8, 8, 100), (1, 8, 8, 1 << 20)])
def test_tables_that_cannot_be(sizes: tuple[int, int, int, int]) -> None:
    segment = Segment.create(8192, "test")
    with pytest.raises(ValueError, match=r"all sizes positive|more than the segment has"):
        RequestTable.create(segment, 0, *sizes)
    with pytest.raises(ValueError, match="multiples of 64 bytes"):
        RequestTable.create(segment, 8, 1, 8, 8, 64)
