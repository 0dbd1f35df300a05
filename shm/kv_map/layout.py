"""Where the KV map's words lie: for whoever makes room for it, without numpy."""

from __future__ import annotations

WORKER, BLOCKS, TAKEOVERS = 0, 1, 2  # header words
HEADER_BYTES = 64
HASH_BYTES = 16


def whole_words(size: int) -> int:
    """So many bytes, rounded up to words."""
    return -(-size // 8) * 8


def kv_map_bytes(slots: int, sequence_blocks: int, blocks: int) -> int:
    """Bytes of a map for so many slots of so many blocks each, and so many blocks in all."""
    return HEADER_BYTES + slots * 24 + whole_words(slots * sequence_blocks * 4) + blocks * HASH_BYTES + blocks
