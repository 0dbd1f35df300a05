"""One piece of POSIX shared memory that has no name: whoever inherits its descriptor can map it, and it ends with them.

Owns creation, size and mapping. Knows nothing of what lies in it.
"""

from __future__ import annotations

import errno
import functools
import io
import mmap
import os
import secrets
import weakref
from collections.abc import Callable

import posix_ipc

from .free_memory import available_bytes
from .layout import PAGE, whole

SHM_FOLDER = "/dev/shm"


class SegmentError(RuntimeError):
    """The memory cannot be had; the message says how much was wanted, for what, and how much there is."""


class Segment:
    """A mapped segment: `map` for bytes, `words` for aligned 64-bit words (one move each in CPython)."""

    def __init__(self, fd: int, size: int, access: int = mmap.ACCESS_WRITE) -> None:
        self.fd = fd
        self._closer: Callable[[], object] = functools.partial(os.close, fd)
        self.size = size
        self.map = mmap.mmap(fd, size, access=access)
        self.words = memoryview(self.map).cast("Q")

    @classmethod
    def create(cls, size: int, label: str) -> Segment:
        """New zeroed memory of at least `size` bytes. All of it is taken now, so that no store is a SIGBUS later."""
        if size <= 0:
            raise ValueError(f"{label}: a segment of {size} bytes")
        size = whole(size, PAGE)
        fd = _take(size, label)
        try:
            made = cls(fd, size)
        except OSError:
            os.close(fd)
            raise
        made._closer = weakref.finalize(made, os.close, fd)  # who made it owns the descriptor
        return made

    @classmethod
    def attach(cls, fd: int) -> Segment:
        """Map the segment of an inherited descriptor."""
        return cls(fd, os.fstat(fd).st_size)

    @classmethod
    def observe(cls, path: str) -> Segment:
        """Map another process's segment by its name in /proc, to read it: a store to it is a TypeError."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return cls(fd, os.fstat(fd).st_size, mmap.ACCESS_READ)
        except (OSError, ValueError):  # ValueError: it is empty
            os.close(fd)
            raise

    def reopen(self) -> io.FileIO:
        """The same memory once more with an open file description of its own: locks belong to that."""
        return io.FileIO(f"/proc/self/fd/{self.fd}", "r+")

    def close(self) -> None:
        """Close the descriptor. The mapping ends with the last reference to it: an array made on it may still be about,
        and numpy does not keep a mapping from being closed under it.
        """
        if self.fd >= 0:
            self._closer()
            self.fd = -1


def _take(size: int, label: str) -> int:
    """The descriptor of new memory. Where SHM_FOLDER is small, as engines make it for containers, or not there, it is a
    file in memory, which may be as large as the machine's.
    """
    try:
        return _allocated(_open_unnamed(label), size, label)
    except SegmentError as error:
        first = error
    try:
        if size > available_bytes():
            raise first
        return _allocated(os.memfd_create("actorserve-segment", os.MFD_CLOEXEC), size, label)
    except OSError:  # as where no descriptors are left
        raise first from first.__cause__


def _allocated(fd: int, size: int, label: str) -> int:
    """All of it."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise SegmentError(
            f"{label}: {size:,} bytes of shared memory are needed, {SHM_FOLDER} has {_free_bytes():,} free"
        ) from error
    return fd


def _open_unnamed(label: str) -> int:
    """An empty piece of shared memory whose name is gone again. Children inherit it only where `pass_fds` says so."""
    name = f"/actorserve-{secrets.token_hex(8)}"
    try:
        fd: int = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600).fd
    except (OSError, posix_ipc.Error) as error:
        raise SegmentError(f"{label}: no shared memory can be made: {error}") from error
    posix_ipc.unlink_shared_memory(name)
    os.set_inheritable(fd, False)
    return fd


def _free_bytes() -> int:
    if not os.path.isdir(SHM_FOLDER):
        return 0
    stat = os.statvfs(SHM_FOLDER)
    return stat.f_bavail * stat.f_frsize
