"""Blocks of KV that tests of the porter keep and fetch."""

from __future__ import annotations

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
