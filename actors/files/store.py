"""Files in the folder of --files-dir: uploaded piece by piece, found by whose they are, removed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from pathlib import Path

import msgspec

from ..protocol.wire import UNREADABLE
from .batches import REQUEST, Batch, BatchRequest, BatchState, BatchStore, read_batch
from .folder import CONTENT, META, Folder, hold, is_held, publish, write_all, write_synced
from .owner import Owner

FILE_ID = re.compile(r"file-[0-9a-f]{24}")
LOOK = 64 << 20  # bytes of an upload between two looks whether there is room


class NoRoom(Exception):
    """--files-limit allows no more. `alone`: not even if nothing else was there."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.alone = alone


class InUse(Exception):
    """A batch that has not ended reads it; its id is the argument."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file: meta.json."""

    id: str
    size: int
    created_at: int  # Unix seconds
    filename: str
    purpose: str
    owner: Owner
    order: int  # in which files are listed: Unix nanoseconds
    digest: str = ""  # of what a client has sent, by which a request that is sent again is known
    expires_at: int | None = None
    num_lines: int | None = None

    @property
    def is_over(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()


class Upload:
    """A file that comes: `begin` it, `write` it, then `keep` it; `drop` it in any case, however far that came."""

    def __init__(self, folder: Folder, name: str, limit: int, place: Path | None = None) -> None:
        """`place`: in which it is kept, if not among files."""
        self._folder, self._id, self._limit = folder, name, limit
        self._kept = (place or folder.files) / name
        self._place: Path | None = None
        self._fd = self._room = -1
        self._look_at = LOOK
        self._sha256 = hashlib.sha256()
        self.size = self._ends = 0
        self._last = b"\n"

    def begin(self) -> None:
        """There is a place for what comes."""
        folder = self._folder
        folder.make()
        with folder.locked():
            self._place = folder.new(self._id)
            self._fd = hold(self._place / CONTENT)
            self._look()

    def _look(self) -> None:
        """How long it may be, beside all that is there and all that comes; one that is sent again needs no room."""
        others = used(self._folder) - _size(self._kept / CONTENT) + _coming(self._folder) - self.size
        self._room, self._look_at = self._limit - others, self.size + LOOK

    @property
    def digest(self) -> str:
        """Of what has come."""
        return self._sha256.hexdigest()

    def write(self, data: bytes) -> None:
        """NoRoom if it is too long."""
        if self.size >= self._look_at:
            with self._folder.locked():
                self._look()
        self.size += len(data)
        if self.size > self._room:
            raise NoRoom(self.size > self._limit)
        self._sha256.update(data)
        self._ends += data.count(b"\n")
        self._last = data[-1:] or self._last
        write_all(self._fd, data)

    def keep(self, owner: Owner, filename: str, purpose: str, created: int, expires_s: int | None = None) -> StoredFile:
        """It is found from now on. The one that has its id, if there is one: this is the same request once more, or
        should be (`digest`). NoRoom where others were quicker, InUse where it has expired and a batch reads it still.
        """
        assert self._place is not None, "it has begun"
        os.fsync(self._fd)
        stored = StoredFile(
            id=self._id,
            size=self.size,
            created_at=created,
            filename=filename,
            purpose=purpose,
            owner=owner,
            order=time.time_ns(),
            digest=self.digest,
            expires_at=None if expires_s is None else created + expires_s,
            num_lines=self._ends + (self._last != b"\n"),
        )
        write_synced(self._place / META, msgspec.json.encode(stored))
        with self._folder.locked():
            before = read_meta(self._kept)
            if before is not None and not before.is_over:
                return before
            _remove(self._folder, self._id)
            self._publish()
        return stored

    def keep_as_batch(self, request: BatchRequest) -> Batch:
        """What has come are the lines of this batch, which is found from now on. The one that has its id, if there is
        one. NoRoom where others were quicker.
        """
        assert self._place is not None, "it has begun"
        os.fsync(self._fd)
        write_synced(self._place / REQUEST, msgspec.json.encode(request))
        with self._folder.locked():
            if self._kept.exists():
                return read_batch(self._kept)
            self._publish()
        return Batch(request, BatchState())

    def _publish(self) -> None:
        """Call it with the lock."""
        assert self._place is not None, "it has begun"
        if used(self._folder) + self.size > self._limit:
            raise NoRoom(self.size > self._limit)
        publish(self._place, self._kept)

    def drop(self) -> None:
        """What is not kept is removed."""
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)  # it may be gone; what is left is swept away later
        if self._fd >= 0:  # until then nobody else removes it
            os.close(self._fd)


class FileStore:
    """All files of a folder."""

    def __init__(self, folder: Folder, limit: int) -> None:
        self.folder, self._limit = folder, limit

    def upload(self, file_id: str) -> Upload:
        """A new one of this id."""
        return Upload(self.folder, file_id, self._limit)

    def upload_batch(self, batch_id: str) -> Upload:
        """The lines of a new batch of this id."""
        return Upload(self.folder, batch_id, self._limit, self.folder.batches)

    def find(self, file_id: str, owner: Owner) -> StoredFile | None:
        """None if it is not there, or another's."""
        found = read_meta(self.folder.files / file_id) if FILE_ID.fullmatch(file_id) else None
        return found if found is not None and found.owner.client == owner.client and not found.is_over else None

    def content(self, file_id: str) -> Path:
        """Of one that was found."""
        return self.folder.files / file_id / CONTENT

    def all(self, owner: Owner) -> list[StoredFile]:
        """His, the oldest first."""
        found = (self.find(name, owner) for name in _names(self.folder.files))
        return sorted((one for one in found if one is not None), key=lambda one: (one.order, one.id))

    def delete(self, file_id: str) -> None:
        """One that was found. InUse names the batch that reads it."""
        with self.folder.locked():
            _remove(self.folder, file_id)

    def sweep(self) -> None:
        """Remove what has expired, and what dead writers have left."""
        with self.folder.locked():
            self.folder.sweep()
            for name in _names(self.folder.files):
                found = read_meta(self.folder.files / name)
                if found is not None and found.is_over:
                    with contextlib.suppress(InUse):
                        _remove(self.folder, name)


def _remove(folder: Folder, file_id: str) -> None:
    """Call it with the lock. InUse names the batch that reads it."""
    if (batch := BatchStore(folder).reader_of(file_id)) is not None:
        raise InUse(batch)
    if (place := folder.files / file_id).exists():  # another was quicker
        folder.remove(place)


def read_meta(place: Path) -> StoredFile | None:
    """None if it is not there, or cannot be read."""
    try:
        return msgspec.json.decode((place / META).read_bytes(), type=StoredFile)
    except (FileNotFoundError, NotADirectoryError, *UNREADABLE):
        return None


def used(folder: Folder) -> int:
    """Bytes of all files, and of what batches bring along and write."""
    lines = folder.batches.glob("*/*.jsonl")
    return sum(map(_size, (*folder.files.glob(f"*/{CONTENT}"), *folder.batches.glob(f"*/{CONTENT}"), *lines)))


def _coming(folder: Folder) -> int:
    """Bytes of uploads that have not ended; call it with the lock."""
    return sum(_size(content) for content in folder.tmp.glob(f"*/{CONTENT}") if is_held(content))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it was removed, or renamed, since it was found
        return 0


def _names(place: Path) -> list[str]:
    try:
        return os.listdir(place)
    except FileNotFoundError:  # nothing was ever uploaded
        return []
