"""Whose model is loaded, where not all models of a server are at once: three words, with the KV map of each engine.

The engine's scheduler alone writes them; those of other models read them (`administration/residency.py` there). They
outlive it: its successor stores them anew by what it finds, and until then they say how it was.
"""

from __future__ import annotations

import mmap

from .layout import HEADER_BYTES, HELD, USED_AT, WANTED_AT


class ResidencyWords:
    """Those of the map at `offset` of the memory. Times are CLOCK_MONOTONIC ns, 0 is never."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._header = memoryview(memory)[offset : offset + HEADER_BYTES].cast("Q")

    @property
    def used_at(self) -> int:
        """When something was last asked of it."""
        return int(self._header[USED_AT])

    @used_at.setter
    def used_at(self, ns: int) -> None:
        self._header[USED_AT] = ns

    @property
    def wanted_at(self) -> int:
        """Since when it sleeps and is asked for something all the same."""
        return int(self._header[WANTED_AT])

    @wanted_at.setter
    def wanted_at(self, ns: int) -> None:
        self._header[WANTED_AT] = ns

    @property
    def is_held(self) -> bool:
        """Have its workers a model, or not yet said that they have given it back?"""
        return bool(self._header[HELD])

    @is_held.setter
    def is_held(self, held: bool) -> None:
        self._header[HELD] = held
