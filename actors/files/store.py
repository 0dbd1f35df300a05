"""Files in the folder of --files-dir: uploaded piece by piece, found by whose they are, removed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from pathlib import Path

import msgspec

from .batches import BatchStore
from .folder import CONTENT, META, Folder, hold, publish, write_all, write_synced
from .owner import Owner

FILE_ID = re.compile(r"file-[0-9a-f]{24}")


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

    @property
    def is_over(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()


class Upload:
    """A file that comes: `begin` it, `write` it, then `keep` it; `drop` it in any case, however far that came."""

    def __init__(self, folder: Folder, file_id: str, limit: int) -> None:
        self._folder, self._id, self._limit = folder, file_id, limit
        self._kept = folder.files / file_id
        self._place: Path | None = None
        self._fd = self._room = -1
        self._sha256 = hashlib.sha256()
        self.size = 0

    def begin(self) -> None:
        """There is a place for what comes."""
        folder = self._folder
        folder.make()
        self._room = self._limit - used(folder) + _size(self._kept / CONTENT)  # one that is sent again needs none
        with folder.locked():
            self._place = folder.new(self._id)
            self._fd = hold(self._place / CONTENT)

    @property
    def digest(self) -> str:
        """Of what has come."""
        return self._sha256.hexdigest()

    def write(self, data: bytes) -> None:
        """NoRoom if it is too long."""
        self.size += len(data)
        if self.size > self._room:
            raise NoRoom(self.size > self._limit)
        self._sha256.update(data)
        write_all(self._fd, data)

    def keep(self, owner: Owner, filename: str, purpose: str, created: int, expires_s: int | None = None) -> StoredFile:
        """It is found from now on. The one that has its id, if there is one: this is the same request once more, or
        should be (`digest`). NoRoom where others were quicker.
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
        )
        write_synced(self._place / META, msgspec.json.encode(stored))
        with self._folder.locked():
            if self._kept.exists():
                return read_meta(self._kept)
            if used(self._folder) + self.size > self._limit:
                raise NoRoom(self.size > self._limit)
            publish(self._place, self._kept)
        return stored

    def drop(self) -> None:
        """What is not kept is removed."""
        if self._fd >= 0:
            os.close(self._fd)
        if self._place is not None and self._place.exists():
            shutil.rmtree(self._place)


class FileStore:
    """All files of a folder."""

    def __init__(self, folder: Folder, limit: int) -> None:
        self.folder, self._limit = folder, limit

    def upload(self, file_id: str) -> Upload:
        """A new one of this id."""
        return Upload(self.folder, file_id, self._limit)

    def find(self, file_id: str, owner: Owner) -> StoredFile | None:
        """None if it is not there, or another's."""
        if not FILE_ID.fullmatch(file_id):
            return None
        try:
            found = read_meta(self.folder.files / file_id)
        except FileNotFoundError:
            return None
        return found if found.owner.client == owner.client and not found.is_over else None

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
            if (batch := BatchStore(self.folder).reader_of(file_id)) is not None:
                raise InUse(batch)
            self._remove(file_id)

    def sweep(self) -> None:
        """Remove what has expired, and what dead writers have left."""
        with self.folder.locked():
            self.folder.sweep()
            over = [name for name in _names(self.folder.files) if read_meta(self.folder.files / name).is_over]
            batches = BatchStore(self.folder)
            for name in over:
                if batches.reader_of(name) is None:
                    self._remove(name)

    def _remove(self, file_id: str) -> None:
        place = self.folder.files / file_id
        if place.exists():  # another was quicker
            self.folder.remove(place)


def read_meta(place: Path) -> StoredFile:
    """FileNotFoundError if it is not there."""
    return msgspec.json.decode((place / META).read_bytes(), type=StoredFile)


def used(folder: Folder) -> int:
    """Bytes of all files, and of what batches write."""
    found = (*folder.files.glob(f"*/{CONTENT}"), *folder.batches.glob("*/*.jsonl"))
    return sum(map(_size, found))


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
