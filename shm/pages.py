"""Pages of memory files that nobody needs any more are given back, where the kernel takes them.

Linux has MADV_REMOVE for that, which also makes zeros of them; gVisor, which some clouds run containers on, refuses it
(ENOSYS). There they keep their memory and their bytes until they are written again: that these are nobody's has to
follow from words.
"""

from __future__ import annotations

import functools
import mmap

from .layout import PAGE


def give_back(memory: mmap.mmap, start: int, size: int) -> None:
    """Whole pages from `start` on: they take no memory, if that can be."""
    if can_give_back():
        memory.madvise(mmap.MADV_REMOVE, start, size)


@functools.cache
def can_give_back() -> bool:
    """Does this kernel take such pages? It is tried on one of its own, so that a mistake elsewhere stays an error, and
    without a descriptor, of which none may be left.
    """
    with mmap.mmap(-1, PAGE) as page:
        try:
            page.madvise(mmap.MADV_REMOVE)
        except OSError:
            return False
    return True
