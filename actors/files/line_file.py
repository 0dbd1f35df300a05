"""A file of JSON lines that grows by whole lines: whoever opens it again drops a last line that was torn off."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .folder import write_all


class LineFile:
    """By a descriptor that is open for reading and appending, which it closes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._end = 0  # of the lines that were read

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Those that are there, with their numbers; the last one may have no end."""
        self._end = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                yield number, line
                self._end += len(line)

    def cut(self) -> None:
        """Behind the last line that was read and gone on from."""
        os.ftruncate(self._fd, self._end)

    def append(self, line: bytes) -> None:
        """OSError where the disk is full, or the like; then nothing of it is there."""
        before = os.fstat(self._fd).st_size
        try:
            write_all(self._fd, line + b"\n")
        except OSError:
            os.ftruncate(self._fd, before)
            raise

    def sync(self) -> None:
        """What was appended is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
