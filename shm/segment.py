"""One piece of POSIX shared memory that has no name: whoever inherits its descriptor can map it, and it ends with them.

Owns creation, size and mapping. Knows nothing of what lies in it.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets

import posix_ipc

PAGE = mmap.PAGESIZE


class SegmentError(RuntimeError):
    """The memory cannot be had; the message says how much was wanted, for what, and how much there is."""


class Segment:
    """A mapped segment: `map` for bytes, `words` for aligned 64-bit words (one move each in CPython)."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self.map = mmap.mmap(fd, size)
        self.words = memoryview(self.map).cast("Q")

    @classmethod
    def create(cls, size: int, label: str) -> Segment:
        """New zeroed memory of at least `size` bytes. All of it is taken now, so that no store is a SIGBUS later."""
        size = -(-size // PAGE) * PAGE
        name = f"/actorserve-{secrets.token_hex(8)}"
        try:
            shared = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
        except OSError as error:
            raise SegmentError(f"{label}: no shared memory can be made: {error}") from None
        posix_ipc.unlink_shared_memory(name)
        try:
            os.posix_fallocate(shared.fd, 0, size)
        except OSError as error:
            os.close(shared.fd)
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            stat = os.statvfs("/dev/shm")
            free = stat.f_bavail * stat.f_frsize
            raise SegmentError(
                f"{label}: {size:,} bytes of shared memory are needed, /dev/shm has {free:,} free"
            ) from None
        os.set_inheritable(shared.fd, False)
        return cls(shared.fd, size)

    @classmethod
    def attach(cls, fd: int) -> Segment:
        """Map the segment of an inherited descriptor."""
        return cls(fd, os.fstat(fd).st_size)

    def reopen(self) -> int:
        """A descriptor of the same memory with an open file description of its own: locks belong to that."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """Unmap. Views that were handed out keep the mapping until they are gone."""
        self.words.release()
        self.map.close()
        os.close(self.fd)
