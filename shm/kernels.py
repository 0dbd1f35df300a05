"""What a server's workers compute with on a CPU, for those that come after them: a memory file, which they write.

Layout: a record for each model (is there, digest, threads, name), which the first worker of any of its engines writes;
then, on a page of its own, the library of all models: bytes, digest, name, and what it is. A digest says what the
writer's choice follows from: what is of another one is read by nobody, and written over. The first word of each is 0
while the rest is written, so that a death leaves all of it or nothing. Each call has the lock while it lasts, some µs;
the kernel takes it from the dead, and nobody waits long for one that stands still with it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any, NamedTuple

from .layout import PAGE, whole

WORD = Struct("<q")
CHOICE = Struct("<32sq64s")  # behind the word that says that it is there
LIBRARY = Struct("<32s64s")  # behind its bytes
RECORD_BYTES = 128
PATIENCE_S, BETWEEN_S = 5.0, 0.001  # of who waits for the lock


class Choice(NamedTuple):
    """What a model is computed with."""

    kernels: str  # our own, by their name; empty: torch's
    threads: int


class KernelsFile:
    """As a worker of one model sees it. TimeoutError: somebody stands still with the lock."""

    def __init__(self, fd: int, models: int, model: int) -> None:
        self._fd, self._record, self._library = fd, model * RECORD_BYTES, whole(models * RECORD_BYTES, PAGE)

    @staticmethod
    def create() -> int:
        """The descriptor of a file in which nothing is."""
        return os.memfd_create("actorserve-kernels", os.MFD_CLOEXEC)

    def choice(self, digest: bytes) -> Choice | None:
        """That of the first worker; None: nobody has chosen."""
        with self._locked():
            return self._choice(digest)

    def choose(self, digest: bytes, choice: Choice) -> Choice:
        """From now on it is this one, unless somebody was sooner; which it is."""
        with self._locked():
            first = self._choice(digest)
            if first is None:
                self._write(self._record, CHOICE.pack(digest, choice.threads, choice.kernels.encode()), 1)
        return first or choice

    def library(self, digest: bytes) -> tuple[str, bytes] | None:
        """(name, what it is); None: nobody has left one."""
        with self._locked():
            name, size = self._left(digest)
            start = self._library + WORD.size + LIBRARY.size
            return (name, os.pread(self._fd, size, start)) if size else None

    def leave(self, digest: bytes, name: str, library: bytes) -> None:
        """For all that come; if there is none yet."""
        with self._locked():
            if not self._left(digest)[1]:
                self._write(self._library, LIBRARY.pack(digest, name.encode()) + library, len(library))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._lock()
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def _lock(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError("another worker stands still while it says what it computes with") from None
                time.sleep(BETWEEN_S)

    def _choice(self, digest: bytes) -> Choice | None:
        there, (made_of, threads, name) = self._read(self._record, CHOICE)
        return Choice(_text(name), threads) if there and made_of == digest else None

    def _left(self, digest: bytes) -> tuple[str, int]:
        size, (made_of, name) = self._read(self._library, LIBRARY)
        return _text(name), size if made_of == digest else 0

    def _read(self, at: int, record: Struct) -> tuple[int, tuple[Any, ...]]:
        """Its word and what is behind it; zeros where nobody has written yet."""
        found = os.pread(self._fd, WORD.size + record.size, at).ljust(WORD.size + record.size, b"\0")
        return WORD.unpack_from(found)[0], record.unpack_from(found, WORD.size)

    def _write(self, at: int, record: bytes, word: int) -> None:
        os.pwrite(self._fd, WORD.pack(0), at)
        view, place = memoryview(record), at + WORD.size
        while view:
            written = os.pwrite(self._fd, view, place)
            view, place = view[written:], place + written
        os.pwrite(self._fd, WORD.pack(word), at)


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode()
