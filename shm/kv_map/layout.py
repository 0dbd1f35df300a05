"""Where the KV map's words and bytes lie: for its writer, for who only looks, and for whoever makes room for it.

Layout, from the region's offset; who writes what, and when, stands in map.py.
    header    worker | blocks | takeovers | pause | sleep, since when (sleep.py)
              | profile, until when (profile.py)
              a line further: used, wanted, held (residency.py)
    a slot    held, computed, announced, stale: four arrays of words
              table: int32[blocks of a sequence]
    a block   hash: 16 bytes, then of all blocks cached: a byte
    a snapshot of states   likewise
    index     ENTRIES uint32 for each of its groups (index.py)
    a block   version: a word; of all blocks, behind all else
"""

from __future__ import annotations

from typing import NamedTuple

from ..layout import CACHE_LINE, HASH_BYTES, WORD_BYTES, whole

WORKER, BLOCKS, TAKEOVERS, PAUSE, SLEEP, SLEPT_AT, PROFILE, PROFILE_END = range(8)  # header words
USED_AT, WANTED_AT, HELD = range(8, 11)
HEADER_WORDS = 16
HEADER_BYTES = 2 * CACHE_LINE
SLOT_WORDS = 4
BLOCK_BYTES = 4  # of a block's number in a table
ENTRIES = 4  # of a group of the index


class KVMapPlaces(NamedTuple):
    """Offsets in bytes of the memory that it lies in."""

    header: int
    held: int
    computed: int
    told: int
    stale: int
    tables: int
    hashes: int
    cached: int
    snapshot_hashes: int
    saved: int
    entries: int
    versions: int
    end: int


def kv_map_places(
    offset: int, slots: int, sequence_blocks: int, blocks: int, snapshots: int = 0, groups: int = 0
) -> KVMapPlaces:
    """Of a map at this offset, for so many slots of so many blocks each, so many blocks and snapshots in all, and an
    index of so many groups.
    """
    held = offset + HEADER_BYTES
    computed = held + slots * WORD_BYTES
    told = computed + slots * WORD_BYTES
    stale = told + slots * WORD_BYTES
    tables = held + slots * SLOT_WORDS * WORD_BYTES
    hashes = tables + whole(slots * sequence_blocks * BLOCK_BYTES, WORD_BYTES)
    cached = hashes + blocks * HASH_BYTES
    snapshot_hashes = cached + blocks
    saved = snapshot_hashes + snapshots * HASH_BYTES
    index = whole(saved + snapshots, CACHE_LINE) if groups else saved + snapshots
    areas = tables, hashes, cached, snapshot_hashes, saved, index
    versions = whole(index + groups * ENTRIES * BLOCK_BYTES, WORD_BYTES)
    return KVMapPlaces(offset, held, computed, told, stale, *areas, versions, versions + blocks * WORD_BYTES)


def kv_map_bytes(slots: int, sequence_blocks: int, blocks: int, snapshots: int = 0, groups: int = 0) -> int:
    """Bytes of such a map."""
    return kv_map_places(0, slots, sequence_blocks, blocks, snapshots, groups).end
