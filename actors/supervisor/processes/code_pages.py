"""Pages of libraries' code that only their imports ran: a template lets go of them.

To import torch runs 60 MB of its code once, to register operators; the page cache has it all the same, but as long as
a process has the pages mapped they count as its own. What an actor of the template runs of it, it maps anew.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterable, Iterator

MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ [1-9]\d* +/")  # code of a file, whose inode is not 0
ANY_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
LEAST = 1 << 20  # bytes of code worth the call


def code_of_files(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """(address, bytes) of code as files have it: none of its pages was written to, as by a debugger."""
    place: tuple[int, int] | None = None
    for line in smaps:
        if ANY_MAPPING.match(line):
            found = MAPPING.match(line)
            place = found and (int(found[1], 16), int(found[2], 16) - int(found[1], 16))
        elif place is not None and line.split() == ["Anonymous:", "0", "kB"] and place[1] >= LEAST:
            yield place


def let_go() -> None:
    """Map them no more; what is run again is read from the page cache, or from the file."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with open("/proc/self/smaps") as smaps:
        places = list(code_of_files(smaps))
    for address, size in places:
        madvise(address, size, mmap.MADV_DONTNEED)  # where it cannot be, all stays as it is
