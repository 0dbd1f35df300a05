"""Batches of --files-dir: what was asked, how far they are; and what deaths leave."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from actorserve.actors.files.batches import BatchState, BatchStore, NoInput
from tests.files.deaths import deaths
from tests.files.test_store import BATCH, ID, OTHER, OWNER, keep, request, store_at


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


def test_what_is_cancelled_says_so_until_it_has_ended(tmp_path: Path) -> None:
    batches = stores(tmp_path)
    batches.create(request())
    batches.save(BATCH, BatchState(status="in_progress"))
    first = batches.cancel(BATCH)
    os.utime(batches.place(BATCH) / "cancel", (5, 5))
    second = batches.cancel(BATCH)
    assert first.status == second.status == "cancelling" and second.cancelled_at == 5
    batches.save(BATCH, BatchState(status="cancelled"))
    assert batches.cancel(BATCH).status == "cancelled"


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
