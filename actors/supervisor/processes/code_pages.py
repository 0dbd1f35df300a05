"""Pages of libraries' code that only their imports ran: a template lets go of them.

To import torch runs 60 MB of its code once, to register operators; the page cache has it all the same, but as long as
a process has the pages mapped they count as its own. What an actor of the template runs of it, it maps anew.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator

from .mappings import Mapping

LEAST = 1 << 20  # bytes of code worth the call


def code_of_files(mappings: Iterable[Mapping]) -> Iterator[Mapping]:
    """Code as files have it: none of its pages was written to, as by a debugger."""
    for one in mappings:
        if one.permissions == "r-xp" and one.is_of_file and not one.anonymous and one.end - one.start >= LEAST:
            yield one


def let_go(mappings: Iterable[Mapping]) -> None:
    """Map them no more; what is run again is read from the page cache, or from the file."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for one in code_of_files(mappings):
        madvise(one.start, one.end - one.start, mmap.MADV_DONTNEED)  # where it cannot be, all stays as it is
