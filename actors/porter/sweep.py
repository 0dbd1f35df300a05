"""Keeps a folder of blocks within its size: the files that were used least lately go. Of several servers on one folder
one at a time does it. Nobody waits for it, and who reads meanwhile finds a file or does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .files import BLOCK, FINGERPRINT, FIRST, PART

LOCK = ".sweep"
LOWER = 0.9  # of the limit is what it comes down to
ABANDONED_S = 600.0  # an unfinished file of somebody who has died
FORGOTTEN = re.compile(FINGERPRINT.pattern + r"\.forgotten-\d+-\d+")
_numbers = itertools.count()


def forgotten_name(place: Path) -> Path:
    """What the folder of a fingerprint is called when nobody is to find its blocks any more."""
    return place.with_name(f"{place.name}.forgotten-{os.getpid()}-{next(_numbers)}")


class Swept(NamedTuple):
    """What a sweep has found, and done."""

    bytes: int  # that are left
    removed: int
    trouble: OSError | None = None  # why some could not be removed


class StoredFile(NamedTuple):
    used: float
    size: int
    path: str


def sweep(root: Path, limit: int) -> Swept | None:
    """None if somebody else is at it; OSError if that cannot be told."""
    with (root / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return _sweep(root, limit)


def measure(root: Path) -> int:
    """Bytes of all blocks in the folder; it changes nothing."""
    return sum(found.size for found in _blocks(root))


def _sweep(root: Path, limit: int) -> Swept:
    for place in _folders(root, FORGOTTEN):
        shutil.rmtree(place, ignore_errors=True)
    blocks = sorted(_blocks(root))
    total, removed = sum(found.size for found in blocks), 0
    wanted = int(limit * LOWER) if total > limit else limit
    trouble: OSError | None = None
    for found in blocks:
        if total <= wanted:
            break
        try:
            os.unlink(found.path)
        except FileNotFoundError:
            pass  # somebody else has removed it
        except OSError as error:
            trouble = error
            continue
        total -= found.size
        removed += 1
    return Swept(total, removed, trouble)


def _blocks(root: Path) -> Iterator[StoredFile]:
    """All of them, of all fingerprints; what somebody has left unfinished is removed. Of other files, in whatever
    folder this is, none is looked at.
    """
    now = time.time()
    for path in _files(root):
        with contextlib.suppress(OSError):  # it is gone, or another user's
            if BLOCK.fullmatch(path.name):
                stat = path.stat(follow_symlinks=False)
                yield StoredFile(stat.st_mtime, stat.st_size, path.path)
            elif PART.fullmatch(path.name) and now - path.stat(follow_symlinks=False).st_mtime > ABANDONED_S:
                os.unlink(path)


def _files(root: Path) -> Iterator[os.DirEntry[str]]:
    """In the folders of blocks."""
    for fingerprint in _folders(root, FINGERPRINT):
        for first in _folders(fingerprint, FIRST):
            with contextlib.suppress(OSError), os.scandir(first) as found:
                yield from (one for one in found if one.is_file(follow_symlinks=False))


def _folders(place: str | Path, name: re.Pattern[str]) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(place) as found:
        yield from (one.path for one in found if name.fullmatch(one.name) and one.is_dir(follow_symlinks=False))
