"""A small request table, and another process's view of it."""

from __future__ import annotations

from actorserve.shm.segment import Segment
from actorserve.shm.table.table import RequestTable, table_bytes

SLOTS, MAX_TOKENS, BLOCK, PARAMS = 5, 40, 8, 128


def new_table(offset: int = 0) -> RequestTable:
    segment = Segment.create(offset + table_bytes(SLOTS, MAX_TOKENS, BLOCK, PARAMS), "test")
    return RequestTable.create(segment, offset, SLOTS, MAX_TOKENS, BLOCK, PARAMS)


def other_view(table: RequestTable) -> RequestTable:
    """What another process sees."""
    return RequestTable.attach(Segment.attach(table.segment.fd), table.offset)


def hashes_of(blocks: int) -> bytes:
    return bytes(range(16 * blocks))
