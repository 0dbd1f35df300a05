"""The folder of --files-dir: what stands where, who writes it, and what a death in between leaves.

    lock                      nothing in it; held (flock) for a moment by whoever begins, adds or removes something
    batcher                   nothing in it; held by the one batcher that works, of all servers on this folder
    tmp/NAME/                 what is not whole yet, or not wanted any more; a file's writer holds its content (flock)
    files/ID/content          a file's bytes
    files/ID/meta.json        what is known of it (store.py)
    files/ID/batch_ID         nothing in it; a batch reads, or has read, the file
    batches/ID/request.json   what was asked (batches.py)
    batches/ID/cancel         is there once somebody has asked to cancel it
    batches/ID/state.json     how far it is
    batches/ID/output.jsonl   an answer a line, of lines that were answered with 200
    batches/ID/errors.jsonl   the same of all others
    batches/ID/content        the lines of one of Anthropic's batches, in OpenAI's form

Frontends write all of files/ID, request.json, and content beside it, which are there whole or not at all: they are made
in tmp, brought to the disk (fsync), and renamed. They make the empty files cancel and files/ID/batch_ID (before the
batch, so that a death may leave it alone). They remove files/ID, and one of Anthropic's batches that has ended, by
renaming it to tmp, as the batcher does with files that have expired and batches that ended long ago. The batcher alone
writes the rest: state.json anew each time (it is renamed over the one before), the lines at the end of the two others.
At a batch's end it makes files/ID of these, as results.py says; of Anthropic's batches they are read where they are,
once state.json says that it has ended.

A frontend's death leaves something in tmp, which the batcher removes once nobody holds it; its client's request is
read again by its successor, which makes the same id of it. What a death of the batcher leaves:
    before state.json says in_progress   nothing: its successor looks at all lines again
    within a line                        that line without an end, which is cut off; it is asked again
    behind a line                        what its custom_id says: it is answered. Lines whose answers had not come are
                                         asked again, by the same Idempotency-Key
    before the end's state is stored     lines that are all there, or files/ID as well: made once more, to the same id
A line is answered once, since the line in one of the two files is its answer, and whoever finds it there asks no more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

LOCK, BATCHER = "lock", "batcher"
CONTENT, META = "content", "meta.json"


class Folder:
    """Its places. They are made where they are missing."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.files, self.batches, self.tmp = (self.root / name for name in ("files", "batches", "tmp"))

    def make(self) -> None:
        """OSError says why it cannot be."""
        for place in (self.files, self.batches, self.tmp):
            place.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else adds or removes meanwhile."""
        fd = self._open(LOCK)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def take_batcher(self) -> int | None:
        """For as long as this descriptor is open its holder is the batcher; None where there is one."""
        fd = self._open(BATCHER)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def _open(self, name: str) -> int:
        return os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def new(self, name: str) -> Path:
        """A place in tmp for what becomes `name`; call it with the lock, and hold that until it is held, or renamed."""
        place = self.tmp / f"{name}.{secrets.token_hex(8)}"
        place.mkdir(0o700)
        return place

    def remove(self, place: Path) -> None:
        """Nobody finds it from now on; call it with the lock."""
        aside = self.tmp / f"{place.name}.{secrets.token_hex(8)}"
        os.rename(place, aside)
        shutil.rmtree(aside, ignore_errors=True)  # what is left, as over NFS what is still read, is swept away later

    def sweep(self) -> None:
        """What dead writers have left in tmp is removed; call it with the lock."""
        for place in list(self.tmp.iterdir()):
            if not is_held(place / CONTENT):
                shutil.rmtree(place, ignore_errors=True)  # one that cannot be removed keeps no other


def hold(content: Path) -> int:
    """A new file, which is its writer's as long as this descriptor is open."""
    fd = os.open(content, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def is_held(content: Path) -> bool:
    """Has it a writer, who lives? Call it with the lock: nobody can hold it meanwhile."""
    try:
        fd = os.open(content, os.O_RDWR | os.O_CLOEXEC)  # over NFS a lock needs one that may write
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def publish(made: Path, place: Path) -> None:
    """What was made in tmp is found at its place from now on, where nothing is yet, also after the machine's end."""
    _sync(made)
    os.rename(made, place)
    _sync(place.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Whole or not at all, and on the disk: who dies meanwhile leaves the one that was there."""
    beside = path.with_suffix(".writing")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(beside, path)
    _sync(path.parent)


def write_all(fd: int, content: bytes | memoryview) -> None:
    """All of it, in as many parts as the kernel takes."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
