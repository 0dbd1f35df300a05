"""Memory fences in pure Python. x86-64 keeps all orders but store → load; arm64 needs a fence between two stores as well.

Releasing and then taking a private lock that is held in between is a full fence on both. One thread a process uses it.
"""

from __future__ import annotations

import platform
import threading

_lock = threading.Lock()
_lock.acquire()
_release, _acquire = _lock.release, _lock.acquire

STORES_IN_ORDER = platform.machine() in ("x86_64", "AMD64", "i686")


def full_fence() -> None:
    """No load or store crosses this line."""
    _release()
    _acquire()


def _nothing() -> None:
    """Stores stay in order here anyway."""


store_fence = _nothing if STORES_IN_ORDER else full_fence
