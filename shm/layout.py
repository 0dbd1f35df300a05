"""What all that lies in shared memory has in common: units, halves of words, and where a structure may begin.

Where the words of one structure lie, its own module or layout.py says. Memory is read and written as 64-bit words, each
by one move, and as bytes. Many words are two halves: `high << 32 | low`. A cursor is a generation and a value; a ref is
a generation and a slot (`make_ref`). What is done for each token writes these shifts out: a call costs more than they.
"""

from __future__ import annotations

import mmap

WORD_BYTES = 8
CACHE_LINE = 64  # bytes; each writer has lines of its own
LINE_WORDS = CACHE_LINE // WORD_BYTES
PAGE = mmap.PAGESIZE
LOW32 = (1 << 32) - 1  # the lower half of a word
HASH_BYTES = 16  # of a block of tokens


def whole(size: int, unit: int) -> int:
    """So many bytes, rounded up to whole units."""
    return -(-size // unit) * unit


def check_place(segment_bytes: int, offset: int, size: int, what: str) -> None:
    """ValueError unless so many bytes can lie at this offset, in cache lines of their own."""
    if offset < 0 or offset % CACHE_LINE or offset + size > segment_bytes:
        raise ValueError(f"no {what} can lie at {offset} of a segment of {segment_bytes}")


def make_ref(generation: int, slot: int) -> int:
    """The name of one use of a slot."""
    return generation << 32 | slot


def slot_of(ref: int) -> int:
    """The slot that a ref names."""
    return ref & LOW32


def generation_of(ref: int) -> int:
    """Which use of its slot a ref names."""
    return ref >> 32
