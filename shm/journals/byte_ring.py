"""The regions of a journal's file: one page of words each, then bytes in whole pages, as they are or as a ring.

In a ring bytes stand by their count: number n at n modulo the room. Their cursors and the order of stores are the
journal's own business; whoever reads or writes here has room for it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

from ..layout import PAGE, WORD_BYTES, whole


def region_bytes(room: int) -> int:
    """Bytes of one region with room for so many."""
    return PAGE + whole(room, PAGE)


def region_words(room: int) -> int:
    """From the first word of a region to that of the next one."""
    return region_bytes(room) // WORD_BYTES


def written_regions(fd: int, room: int, count: int) -> Iterator[int]:
    """Which of the first regions of this file have memory. The place in the file of whoever reads it is moved."""
    number = 0
    while number < count:
        try:
            number = os.lseek(fd, number * region_bytes(room), os.SEEK_DATA) // region_bytes(room)
        except OSError:  # there is nothing more
            return
        if number < count:
            yield number
        number += 1


def data_start(first_word: int) -> int:
    """Where a region's bytes begin, by its first word."""
    return first_word * WORD_BYTES + PAGE


def read_ring(memory: mmap.mmap, start: int, room: int, at: int, length: int) -> bytes:
    """Bytes number `at` and following of the ring that begins at `start`."""
    place = at % room
    head = min(length, room - place)
    return memory[start + place : start + place + head] + memory[start : start + length - head]


def write_ring(memory: mmap.mmap, start: int, room: int, at: int, data: bytes) -> None:
    """Put bytes in their places; of more than the whole ring the last ones."""
    if len(data) > room:
        at += len(data) - room
        data = data[-room:]
    place = at % room
    head = min(len(data), room - place)
    memory[start + place : start + place + head] = data[:head]
    memory[start : start + len(data) - head] = data[head:]
