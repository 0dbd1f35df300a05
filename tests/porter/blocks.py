"""Blocks of KV that tests of the porter keep and fetch, and the wait for threads that do it."""

from __future__ import annotations

import time
from collections.abc import Callable

from actorserve.actors.porter.carrier import Kind

PRINT, SIZE = bytes(range(32)), 5000
KIND = Kind(PRINT, SIZE)
WAIT_S = 60.0


def keys(count: int) -> list[bytes]:
    """So many."""
    return [bytes([number]) * 16 for number in range(count)]


def contents(key: bytes) -> bytes:
    """What is kept by a key."""
    return (key * SIZE)[:SIZE]


def until(true: Callable[[], bool]) -> None:
    """Threads do it when they come to it."""
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.002)
