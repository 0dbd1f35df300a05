"""KV memory that outlives its worker: a memory file of the supervisor's, which the next life of the worker maps, too.

Layout: a header page (magic, then the first life whose memory this is, blocks, digest; for who copies blocks a
description, shm/kv_tier/blocks.py), behind it the pools as they are taken, each in whole pages. The worker alone writes
it. Whether what lies there is what the KV map says is for the scheduler to judge, by two numbers: all lives from
`since` on have written here and nowhere else, so a map that is about one of them is about this memory. What a death
leaves half written are tokens that no map calls computed, and blocks that no prefix finds (shm/kv_map/map.py).

A life goes on with what it finds if the digest is that of its own model, options and code; otherwise, and where there
is nothing, the file is emptied, and this life is the first. The magic is stored last: a life that dies before has begun
nothing. One that dies behind it has met no scheduler, so no map is about it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path

import msgspec

from actorserve.shm.kv_tier.blocks import HEADER, MAGIC
from actorserve.shm.layout import PAGE, whole

from ...options.config import Config

NO_DIFFERENCE = ("log_level", "debug")  # options
# Folders beside this package's, whose files say what the numbers mean:
CODE = ("worker", "model", "media", "sound", "../kernels/cpu")
OF_GPUS = ("../kernels/triton", "../kernels/pages.py")  # beside these, of KV memory that a GPU may have written


class KeptMemory:
    """One worker's file."""

    def __init__(self, fd: int, digest: bytes, life: int) -> None:
        """`life`: which one this is of the group."""
        self.fd, self._digest, self._life = fd, digest, life
        self.taken: list[tuple[int, mmap.mmap]] = []  # where each begins
        self._end = PAGE
        self.since = self.blocks = 0  # the first life whose memory this is, and its size; 0: it is nobody's
        if os.fstat(fd).st_size >= PAGE:
            magic, since, blocks, found = HEADER.unpack(os.pread(fd, HEADER.size, 0))
            if magic == MAGIC and found == digest:
                self.since, self.blocks = since, blocks

    def begin(self, blocks: int) -> None:
        """Nothing is kept from here on: it is this life's memory, of so many blocks, all zeros."""
        os.ftruncate(self.fd, 0)
        os.ftruncate(self.fd, PAGE)
        self.since, self.blocks = self._life, blocks
        record = HEADER.pack(MAGIC, self.since, blocks, self._digest)
        os.pwrite(self.fd, record[len(MAGIC) :], len(MAGIC))
        os.pwrite(self.fd, MAGIC, 0)

    def forget(self) -> None:
        """It is nobody's."""
        os.ftruncate(self.fd, 0)
        self.since = self.blocks = 0

    def take(self, size: int) -> mmap.mmap:
        """The next bytes, the same in each life, which all take alike. They take memory when they are written."""
        start, self._end = self._end, self._end + whole(size, PAGE)
        if os.fstat(self.fd).st_size < self._end:
            os.ftruncate(self.fd, self._end)
        taken = mmap.mmap(self.fd, size, offset=start)
        self.taken.append((start, taken))
        return taken


def digest_of(config: Config, folder: str, *more: object) -> bytes:
    """Of all that gives the numbers in KV memory their meaning: options, weights, code, and what else is said."""
    options = {name: value for name, value in msgspec.structs.asdict(config).items() if name not in NO_DIFFERENCE}
    own = Path((config.worker_cls or "").rpartition(":")[0])
    if own.suffix == ".py" and own.is_file():
        more = (*more, own.read_bytes())
    said = (sorted(options.items()), _stamps(Path(folder), deep=False), code_stamps(), more)
    return blake2b(repr(said).encode(), digest_size=32).digest()


@cache
def code_stamps() -> list[list[tuple[str, int, int]]]:
    """Of the code's files when it is imported (../imports.py)."""
    here = Path(__file__).resolve().parents[2]
    return [_stamps(here / name) for name in (*CODE, *OF_GPUS)]


def _stamps(place: Path, deep: bool = True) -> list[tuple[str, int, int]]:
    """(name, bytes, ns of the last change) of all files there, or of this one."""
    files = [place] if place.is_file() else place.rglob("*") if deep else place.iterdir()
    found = [(path.name, path.stat()) for path in sorted(files) if path.is_file() and path.suffix != ".pyc"]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]


Take = Callable[[int], mmap.mmap]


def anonymous(size: int) -> mmap.mmap:
    """Memory that goes with its process; zeros, which take memory only when they are first written."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
