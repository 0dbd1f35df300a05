"""Two short texts of engines elsewhere. Where those are that are placed by somebody else: a small file of memory,
written by the one who knows, read by the links to them at each try to connect. And why one does not compute for this
server: in the server's segment, written by its link, read by all who are asked.

For each engine 256 bytes: CRC-32 of the address, its length, the address as host:port; none is an empty text, and one
that is not wanted a dash. A reader that meets a writer finds another checksum, which is no address; it tries again.
"""

from __future__ import annotations

import mmap
import os
import zlib
from struct import Struct

PLACE_BYTES = 256
HEAD = Struct("<IH")
PARKED = "-"  # in the place of an address: it is not wanted now


class EnginePlaces:
    """All of them."""

    def __init__(self, fd: int, engines: int) -> None:
        self._map = mmap.mmap(fd, engines * PLACE_BYTES)

    @staticmethod
    def create(engines: int) -> int:
        """The descriptor of a memory file; nobody is anywhere yet."""
        fd = os.memfd_create("actorserve-engine-places", os.MFD_CLOEXEC)
        os.ftruncate(fd, engines * PLACE_BYTES)
        return fd

    def write(self, engine: int, address: str) -> None:
        """The caretaker's. ValueError if there is no room for it."""
        text = address.encode()
        if len(text) > PLACE_BYTES - HEAD.size:
            raise ValueError(f"an address of {len(text)} bytes")
        _write(self._map, engine * PLACE_BYTES, text)

    def read(self, engine: int) -> str:
        """Nothing, where it is not known."""
        return _read(self._map, engine * PLACE_BYTES)


class EngineTroubles:
    """Of all engines elsewhere, at an offset of the server's segment."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._map, self._offset = memory, offset

    def write(self, engine: int, why: str) -> None:
        """Its link's; what is too long is cut."""
        text = why.encode()[: PLACE_BYTES - HEAD.size].decode(errors="ignore").encode()
        _write(self._map, self._offset + engine * PLACE_BYTES, text)

    def read(self, engine: int) -> str:
        """Nothing, where it computes."""
        return _read(self._map, self._offset + engine * PLACE_BYTES)


def _write(memory: mmap.mmap, start: int, text: bytes) -> None:
    memory[start : start + HEAD.size + len(text)] = HEAD.pack(zlib.crc32(text), len(text)) + text


def _read(memory: mmap.mmap, start: int) -> str:
    checksum, length = HEAD.unpack_from(memory, start)
    text = memory[start + HEAD.size : start + HEAD.size + length]
    return text.decode() if length <= PLACE_BYTES - HEAD.size and zlib.crc32(text) == checksum else ""
