"""Files of --files-dir: found whole or not at all, by whose they are; and what deaths leave."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from actorserve.actors.files.batches import BatchRequest, BatchState, BatchStore
from actorserve.actors.files.folder import Folder, is_held
from actorserve.actors.files.owner import Owner
from actorserve.actors.files.store import FileStore, InUse, NoRoom, StoredFile, Upload
from tests.files.deaths import deaths

OWNER, OTHER = Owner("a", "ann"), Owner("b", "bob")
ID, SECOND = (f"file-{digit * 24}" for digit in "12")
BATCH = f"batch_{'3' * 24}"
MANY = 1 << 20


def store_at(path: Path, limit: int = MANY) -> FileStore:
    return FileStore(Folder(path), limit)


def keep(
    store: FileStore, content: bytes = b"one\ntwo\n", file_id: str = ID, expires_s: int | None = None
) -> StoredFile:
    upload = store.upload(file_id)
    try:
        upload.begin()
        for at in range(0, len(content), 4):
            upload.write(content[at : at + 4])
        return upload.keep(OWNER, "in.jsonl", "batch", 1000, expires_s)
    finally:
        upload.drop()


def request(file_id: str = ID) -> BatchRequest:
    return BatchRequest(
        id=BATCH,
        endpoint="/v1/completions",
        input_file_id=file_id,
        completion_window="24h",
        created_at=1,
        expires_at=2,
        owner=OWNER,
        order=1,
    )


def test_a_file_is_its_owners(tmp_path: Path) -> None:
    store = store_at(tmp_path / "new" / "folder")
    assert store.all(OWNER) == [] and store.find(ID, OWNER) is None
    kept = keep(store)
    assert kept.size == 8 and store.find(ID, OWNER) == kept and store.content(ID).read_bytes() == b"one\ntwo\n"
    assert store.find(ID, OTHER) is None and store.all(OTHER) == []
    second = keep(store, b"", SECOND)
    assert store.all(OWNER) == [kept, second]
    store.delete(ID)
    assert store.all(OWNER) == [second] and os.listdir(tmp_path / "new" / "folder" / "tmp") == []


@pytest.mark.parametrize("name", ["", "file-", f"file-{'g' * 24}", "file-/../../x", f"../files/{ID}", f"{ID}/"])
def test_what_is_no_id_finds_nothing(tmp_path: Path, name: str) -> None:
    store = store_at(tmp_path)
    keep(store)
    assert store.find(name, OWNER) is None


def test_the_same_request_once_more_keeps_the_first(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    kept = keep(store)
    assert keep(store) == kept and keep(store, b"other").digest == kept.digest
    assert store.content(ID).read_bytes() == b"one\ntwo\n"


def test_all_of_them_have_a_limit(tmp_path: Path) -> None:
    store = store_at(tmp_path, 10)
    with pytest.raises(NoRoom) as raised:
        keep(store, b"x" * 11)
    assert raised.value.alone
    keep(store)
    with pytest.raises(NoRoom) as raised:
        keep(store, b"123", SECOND)
    assert not raised.value.alone and keep(store, b"12", SECOND).size == 2
    assert keep(store).id == ID  # sent again, it takes no more
    assert os.listdir(tmp_path / "tmp") == []


def test_of_two_that_come_at_once_the_second_has_no_room(tmp_path: Path) -> None:
    store = store_at(tmp_path, 10)
    uploads = [store.upload(name) for name in (ID, SECOND)]
    for upload in uploads:
        upload.begin()
    for upload in uploads:
        upload.write(b"x" * 6)
    uploads[0].keep(OWNER, "a", "batch", 1)
    with pytest.raises(NoRoom):
        uploads[1].keep(OWNER, "b", "batch", 1)
    for upload in uploads:
        upload.drop()
    assert [one.id for one in store.all(OWNER)] == [ID]


def test_what_comes_at_once_has_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at on the way: else as much would be written as there are uploads."""
    monkeypatch.setattr("actorserve.actors.files.store.LOOK", 10)
    store = store_at(tmp_path, 100)
    uploads = [store.upload(f"file-{digit * 24}") for digit in "456"]
    for upload in uploads:
        upload.begin()
    with pytest.raises(NoRoom) as raised:
        write_in_turn(uploads)
    assert not raised.value.alone and sum(upload.size for upload in uploads) <= 100 + 3 * 10
    uploads[0].drop()
    uploads[1].drop()
    uploads[2].write(b"x" * 20)
    last = store.upload(ID)
    last.begin()
    with pytest.raises(NoRoom):
        last.write(b"x" * 60)
    for upload in (uploads[2], last):
        upload.drop()


def write_in_turn(uploads: list[Upload]) -> None:
    for _ in range(10):
        for upload in uploads:
            upload.write(b"x" * 10)


def test_what_a_dead_writer_has_left_takes_no_room(tmp_path: Path) -> None:
    store = store_at(tmp_path, 10)
    store.folder.make()
    (store.folder.new(ID) / "content").write_bytes(b"x" * 8)
    assert keep(store).size == 8


def test_one_that_has_expired_is_not_found_once_more(tmp_path: Path) -> None:
    """By an Idempotency-Key, say, before it is swept away; unless a batch reads it still."""
    store = store_at(tmp_path, 10)
    keep(store, expires_s=1)
    batches = BatchStore(store.folder)
    batches.create(request())
    with pytest.raises(InUse, match=BATCH):
        keep(store, b"new")
    assert store.content(ID).read_bytes() == b"one\ntwo\n"
    batches.save(BATCH, BatchState(status="completed"))
    assert keep(store, b"new").size == 3 and store.content(ID).read_bytes() == b"new"


def test_what_a_batch_reads_stays(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    keep(store, expires_s=1)
    keep(store, file_id=SECOND)
    batches = BatchStore(store.folder)
    batches.create(request())
    with pytest.raises(InUse, match=BATCH):
        store.delete(ID)
    store.delete(SECOND)
    store.sweep()
    assert store.find(ID, OWNER) is None and store.content(ID).exists()  # it has expired, and is read still
    batches.save(BATCH, BatchState(status="completed"))
    store.sweep()
    assert not store.content(ID).exists()


def test_what_has_not_begun_is_dropped(tmp_path: Path) -> None:
    store_at(tmp_path).upload(ID).drop()
    assert os.listdir(tmp_path) == []


def test_what_is_being_written_is_not_swept_away(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    upload = store.upload(ID)
    upload.begin()
    store.sweep()
    upload.write(b"12")
    assert upload.keep(OWNER, "a", "batch", 1).size == 2
    upload.drop()


def test_a_death_within_an_upload_leaves_all_or_nothing(tmp_path: Path) -> None:
    found = set()
    for calls in deaths(lambda: keep(store_at(tmp_path))):
        store = store_at(tmp_path)
        kept = store.find(ID, OWNER)
        found.add(kept is not None)
        assert kept is None or store.content(ID).read_bytes() == b"one\ntwo\n", calls
        if (tmp_path / "tmp").exists() and (tmp_path / "files").exists():
            store.sweep()
            assert os.listdir(tmp_path / "tmp") == [], calls
        assert keep(store).size == 8 and store.content(ID).read_bytes() == b"one\ntwo\n"
        store.delete(ID)
    assert found == {False, True}


def test_a_death_within_a_deletion_leaves_all_or_nothing(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    keep(store)
    for calls in deaths(lambda: store_at(tmp_path).delete(ID)):
        kept = store.find(ID, OWNER)
        assert kept is None or store.content(ID).read_bytes() == b"one\ntwo\n", calls
        store.sweep()
        assert os.listdir(tmp_path / "tmp") == [], calls
        keep(store)
    assert store.find(ID, OWNER) is None


def test_what_is_no_file_keeps_no_other(tmp_path: Path) -> None:
    """Folders and files of strangers, and what a machine's end has left."""
    store = store_at(tmp_path)
    keep(store, expires_s=1)
    kept = keep(store, file_id=SECOND)
    for name, content in {"lost+found": None, f"file-{'7' * 24}": b"{", f"file-{'8' * 24}": b"\xff"}.items():
        (tmp_path / "files" / name).mkdir()
        if content is not None:
            (tmp_path / "files" / name / "meta.json").write_bytes(content)
    (tmp_path / "files" / "file").touch()
    (tmp_path / "tmp" / "file").touch()
    (tmp_path / "tmp" / "left").mkdir()
    store.sweep()
    assert not store.content(ID).exists() and os.listdir(tmp_path / "tmp") == ["file"]
    assert store.all(OWNER) == [kept] and store.find(f"file-{'7' * 24}", OWNER) is None
    assert keep(store, file_id=f"file-{'7' * 24}").size == 8


def test_locks_are_had_over_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one that keeps others out needs a descriptor that may write."""

    def lock(fd: int, how: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(fd, how)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lock)
    store = store_at(tmp_path)
    upload = store.upload(ID)
    upload.begin()
    (store.folder.new("left") / "content").touch()
    store.sweep()
    assert len(os.listdir(tmp_path / "tmp")) == 1
    upload.drop()


def test_what_is_dropped_is_its_own_until_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is gone already, or something of it stays, as over NFS what is open."""
    store = store_at(tmp_path)
    rmtree, held = shutil.rmtree, list[bool]()

    def remove(place: Path, ignore_errors: bool = False) -> None:
        held.append(is_held(place / "content"))
        rmtree(place, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", remove)
    uploads = [store.upload(name) for name in (ID, SECOND)]
    for upload in uploads:
        upload.begin()
    uploads[0].drop()
    rmtree(tmp_path / "tmp")
    uploads[1].drop()
    assert held[0]


def test_a_folder_that_stays_for_now_is_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(tmp_path)
    keep(store)

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", busy)
        store.delete(ID)
        store.sweep()
    assert store.find(ID, OWNER) is None
    store.sweep()
    assert os.listdir(tmp_path / "tmp") == []
