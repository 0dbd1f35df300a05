"""A bound on the memory that a piece of Python may take while it runs: past it, MemoryError.

It is for Python alone: the tokenizer's library ends the process where it gets no memory, so it must run outside.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

PAGE = resource.getpagesize()


@contextmanager
def bounded_memory(size: int) -> Iterator[None]:
    """Within this, the process maps at most `size` bytes more than it has now. Not for several threads at a time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _mapped() + size
    for other in (soft, hard):
        if other != resource.RLIM_INFINITY:
            limit = min(limit, other)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _mapped() -> int:
    """Bytes of address space that this process has, shared ones too."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * PAGE
