"""Memory fences in pure Python.

x86-64 keeps all orders but store → load, so only `full_fence` does anything there. arm64 needs a fence between two
stores and between two loads as well.

Releasing and then taking a private lock that is held in between is a full fence on both. Each thread has its own: of
several that released a common one, a second would find it released.
"""

from __future__ import annotations

import platform
import threading


class _OwnLock(threading.local):
    """A thread's, which holds it."""

    def __init__(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self.release, self.acquire = lock.release, lock.acquire


_own = _OwnLock()

KEEPS_ORDER = platform.machine() in ("x86_64", "AMD64", "i686")


def full_fence() -> None:
    """No load or store crosses this line."""
    _own.release()
    _own.acquire()


def _nothing() -> None:
    """The processor keeps this order anyway."""


store_fence = _nothing if KEEPS_ORDER else full_fence  # stores before it are seen before stores after it
load_fence = _nothing if KEEPS_ORDER else full_fence  # loads before it are done before loads and stores after it
