"""Keeps a folder of blocks within its size: the files that were used least lately go. Of several servers on one folder
one at a time does it. Nobody waits for it, and who reads meanwhile finds a file or does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .files import SUFFIX, UNFINISHED

LOCK = ".sweep"
LOWER = 0.9  # of the limit is what it comes down to
ABANDONED_S = 600.0  # an unfinished file of somebody who has died


class Swept(NamedTuple):
    """What a sweep has found, and done."""

    bytes: int  # that are left
    removed: int


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
    blocks = sorted(_blocks(root))
    total, removed = sum(found.size for found in blocks), 0
    wanted = int(limit * LOWER) if total > limit else limit
    for found in blocks:
        if total <= wanted:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(found.path)
        total -= found.size
        removed += 1
    return Swept(total, removed)


def _blocks(root: Path) -> Iterator[StoredFile]:
    """All of them, of all fingerprints; what somebody has left unfinished is removed."""
    now = time.time()
    for place, _, names in os.walk(root):
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError):
                if name.endswith(SUFFIX):
                    stat = os.stat(path)
                    yield StoredFile(stat.st_mtime, stat.st_size, path)
                elif name.endswith(UNFINISHED) and now - os.stat(path).st_mtime > ABANDONED_S:
                    os.unlink(path)
