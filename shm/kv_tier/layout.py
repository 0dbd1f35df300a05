"""Where the parts of the tier lie (arena.py says what they mean): for whoever makes room for it, without numpy."""

from __future__ import annotations

import os
from typing import NamedTuple

from ..layout import CACHE_LINE, PAGE, WORD_BYTES, whole

LEAST_SLOT = 4096  # bytes
HEADER_BYTES = 2 * CACHE_LINE


class TierSizes(NamedTuple):
    """Of the file."""

    engines: int
    bytes: int  # for data

    @property
    def most_slots(self) -> int:
        return max(1, self.bytes // LEAST_SLOT)

    @property
    def leases(self) -> int:
        """The offset of these."""
        return HEADER_BYTES + self.engines * CACHE_LINE

    @property
    def slots(self) -> int:
        """Likewise."""
        return whole(self.leases + self.most_slots * self.engines * WORD_BYTES, CACHE_LINE)

    @property
    def data(self) -> int:
        """Likewise."""
        return whole(self.slots + self.most_slots * CACHE_LINE, PAGE)

    @property
    def total(self) -> int:
        """Bytes of the file."""
        return self.data + whole(max(self.bytes, LEAST_SLOT), PAGE)


def create_tier(sizes: TierSizes) -> int:
    """The descriptor of a memory file; it takes memory as it is written."""
    fd = os.memfd_create("actorserve-kv-tier", os.MFD_CLOEXEC)
    os.ftruncate(fd, sizes.total)
    return fd
