"""Batches of --files-dir: what was asked, how far they are; and what deaths leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from actorserve.actors.files.batches import Batch, BatchState, BatchStore, NoInput
from actorserve.actors.files.store import InUse
from tests.files.deaths import deaths
from tests.files.test_store import BATCH, ID, OTHER, OWNER, SECOND, keep, request, store_at


def stores(path: Path) -> BatchStore:
    files = store_at(path)
    keep(files)
    return BatchStore(files.folder)


def test_a_batch_is_its_owners(tmp_path: Path) -> None:
    batches = stores(tmp_path)
    assert batches.all() == []
    made = batches.create(request())
    assert made.status == "validating" and batches.find(BATCH, OWNER) == made and batches.all() == [made]
    assert batches.find(BATCH, OTHER) is None and batches.get("batch_../x") is None


def test_the_same_request_once_more_makes_none(tmp_path: Path) -> None:
    batches = stores(tmp_path)
    batches.create(request())
    batches.save(BATCH, BatchState(status="completed"))
    store_at(tmp_path).delete(ID)
    assert batches.create(request()).status == "completed" and len(batches.all()) == 1


def test_without_its_input_there_is_none(tmp_path: Path) -> None:
    batches = stores(tmp_path)
    with pytest.raises(NoInput):
        batches.create(request(f"file-{'0' * 24}"))
    assert batches.all() == []


def test_only_its_readers_are_looked_at_when_a_file_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, files = stores(tmp_path), store_at(tmp_path)
    keep(files, file_id=SECOND)
    other = f"batch_{'4' * 24}"
    batches.create(request())
    batches.create(msgspec.structs.replace(request(SECOND), id=other))
    looked, get = list[str](), BatchStore.get

    def look(store: BatchStore, name: str) -> Batch | None:
        looked.append(name)
        return get(store, name)

    monkeypatch.setattr(BatchStore, "get", look)
    with pytest.raises(InUse, match=BATCH):
        files.delete(ID)
    batches.save(BATCH, BatchState(status="completed"))
    files.delete(ID)
    assert set(looked) == {BATCH} and files.find(ID, OWNER) is None


def test_old_batches_are_removed_once_they_have_ended(tmp_path: Path) -> None:
    batches, names = stores(tmp_path), [f"batch_{digit * 24}" for digit in "4567"]
    ends = {"4": ("completed", 99), "5": ("failed", 100), "6": ("in_progress", None), "7": ("cancelled", 99)}
    for name, (status, ended_at) in zip(names, ends.values(), strict=True):
        batches.create(msgspec.structs.replace(request(), id=name))
        batches.save(name, BatchState(status=status, ended_at=ended_at))
        os.utime(batches.place(name) / "state.json", (99, 99))
    os.utime(batches.place(names[3]) / "state.json", (200, 200))  # looked at no further
    assert batches.remove_old(100) == 1 and batches.remove_old(100) == 0
    assert {one.id for one in batches.all()} == set(names[1:])
    assert sorted(one.name for one in (tmp_path / "files" / ID).glob("batch_*")) == names[1:]
    assert os.listdir(tmp_path / "tmp") == []


def test_what_is_cancelled_says_so_until_it_has_ended(tmp_path: Path) -> None:
    batches = stores(tmp_path)
    batches.create(request())
    batches.save(BATCH, BatchState(status="in_progress"))
    first = batches.cancel(BATCH)
    os.utime(batches.place(BATCH) / "cancel", (5, 5))
    second = batches.cancel(BATCH)
    assert first is not None and second is not None
    assert first.status == second.status == "cancelling" and second.cancelled_at == 5
    batches.save(BATCH, BatchState(status="cancelled"))
    third = batches.cancel(BATCH)
    assert third is not None and third.status == "cancelled"


def test_what_was_removed_cannot_be_cancelled(tmp_path: Path) -> None:
    batches = stores(tmp_path)
    batches.create(request())
    batches.delete(BATCH)
    assert batches.cancel(BATCH) is None


def test_what_is_removed_as_it_is_read_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or as it was; never as one that nobody has begun."""
    batches, read, found = stores(tmp_path), Path.read_bytes, set[str | None]()
    for calls in range(4):
        batches.create(request())
        batches.save(BATCH, BatchState(status="completed"))
        count = iter(range(calls, -1, -1))

        def read_later(path: Path, count: Iterator[int] = count) -> bytes:
            if next(count, -1) == 0:
                batches.delete(BATCH)
            return read(path)

        monkeypatch.setattr(Path, "read_bytes", read_later)
        one = batches.get(BATCH)
        monkeypatch.undo()
        batches.delete(BATCH)
        found.add(None if one is None else one.status)
    assert found == {None, "completed"}


def test_a_death_leaves_a_batch_or_none(tmp_path: Path) -> None:
    batches, found = stores(tmp_path), set()
    for calls in deaths(lambda: batches.create(request())):
        there = batches.all()
        found.add(len(there))
        assert there in ([], [batches.get(BATCH)]), calls
        store_at(tmp_path).sweep()
        assert os.listdir(tmp_path / "tmp") == []
        assert batches.create(request()).request == request()
        batches.folder.remove(batches.place(BATCH))
    assert found == {0, 1}


def test_a_death_leaves_one_state_or_the_other(tmp_path: Path) -> None:
    batches = stores(tmp_path)
    batches.create(request())
    states, found = [BatchState(status=name, total=7) for name in ("in_progress", "finalizing")], set()
    for _ in deaths(lambda: batches.save(BATCH, states[1])):
        now = batches.get(BATCH)
        assert now is not None and now.state in (BatchState(), *states)
        found.add(now.state.status)
        batches.save(BATCH, states[0])
    assert found == {"validating", "in_progress", "finalizing"}
    assert msgspec.json.decode((batches.place(BATCH) / "state.json").read_bytes(), type=BatchState) == states[1]
