"""A claim on one end of a ring: taken once, gone with its holder however that dies.

It is a lock on the end's first word that belongs to an open file description of the claim's own (F_OFD_SETLK). So it
also holds between two takers in one process, closing another descriptor of the segment does not lose it (as POSIX locks
are lost), and the kernel releases it when the holder is killed, before its parent hears of the death.
A child that is forked without exec shares the description and keeps the claim alive: holders of claims do not fork so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from .layout import WORD_BYTES
from .segment import Segment

FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, length, pid


class RingBusy(RuntimeError):
    """This end of the ring is taken, and its holder is alive."""


class EndLock:
    """An exclusive lock on the word at `offset` until it is closed, dropped, or its process dies."""

    def __init__(self, segment: Segment, offset: int, what: str) -> None:
        self._file = segment.reopen()  # a file, not a number: it is closed wherever its owner is dropped
        lock = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, offset, WORD_BYTES, 0)
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)
        except OSError as error:
            self._file.close()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise RingBusy(f"{what} is taken already") from error

    def close(self) -> None:
        """Release it; another may have it."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()
