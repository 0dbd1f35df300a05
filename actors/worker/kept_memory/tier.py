"""The worker's part in KV tiers (--kv-offload): it says what its KV memory means, and copies blocks into it.

The description (shm/kv_tier/blocks.py) is written once the memory is there. From then on the porter reads blocks out of
the file by itself. What it has fetched the worker copies, between steps, at its scheduler's word.
"""

from __future__ import annotations

import importlib.metadata
import mmap
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path

from actorserve.shm.kv_tier.arena import TierArena
from actorserve.shm.kv_tier.blocks import BlockWriter, KVDescription, Piece, describe

from ...model.memory.kv import KVSpec, KVType
from ...model.weights.marks import folder_marks
from ...protocol.topics.tiers import LoadBlocks
from ...protocol.wire import unpack
from ...runtime.process import Context
from .file import CODE, KeptMemory

LIBRARIES = ("torch", "transformers", "numpy")  # that compute


class TierReader:
    """Of one worker."""

    def __init__(self, arena: TierArena, first: int, description: KVDescription, memory: list[mmap.mmap]) -> None:
        """Its part of a block begins at byte `first`; `memory` of the description's pieces."""
        self._arena = arena
        self._first, self._end = first, first + description.block_bytes
        self._blocks = BlockWriter(description, [memoryview(part) for part in memory])

    def load(self, message: LoadBlocks) -> None:
        """Copy this member's part of each block."""
        blocks, slots = unpack(message.packed_blocks).tolist(), unpack(message.packed_slots).tolist()
        for block, slot in zip(blocks, slots, strict=True):
            if slot < self._arena.count:  # of an order that counts no more the arena may be another
                self._blocks.write(block, self._arena.data(slot)[self._first : self._end])


def make_reader(
    context: Context, kept: KeptMemory, kvs: Sequence[KVSpec], kind: KVType, *more: object
) -> TierReader | None:
    """Describe the memory that was taken, of this type, which `more` gives a meaning; None without tiers. `kvs`: of all
    workers of the engine, whose parts of a block lie one behind the other.
    """
    arena = context.kv_tier()
    if arena is None:
        return None
    own, block_size = context.spec.index, context.config.block_size
    kv = kvs[own]
    meaning = blake2b(repr((kv, kind, code_digest(), *map(_version, LIBRARIES), more)).encode(), digest_size=32)
    slots = kept.blocks * block_size
    sizes = [size for spec in kv.pools() for size in spec.row_bytes(kind)]
    pieces = [
        Piece(start, len(part) // (slots * size), block_size * size)
        for (start, part), size in zip(kept.taken, sizes, strict=True)
    ]
    described = KVDescription(meaning.digest(), kept.blocks, pieces, folder_marks(context.model.folder))
    describe(kept.fd, described)
    alike = all(one == kv for one in kvs)
    assert alike or kv.block_bytes(block_size, kind) == described.block_bytes, "others know where its part begins"
    before = (described.block_bytes if one == kv else one.block_bytes(block_size, kind) for one in kvs[:own])
    return TierReader(arena, sum(before), described, [part for _, part in kept.taken])


@cache
def code_digest() -> bytes:
    """Of the code that makes the numbers, as it is written when it is imported (../imports.py): once for all lives of
    workers, and not when one of them begins, as other code may be on disk by then.
    """
    found = blake2b(digest_size=32)
    here = Path(__file__).resolve().parents[2]
    for folder in CODE:
        for path in sorted((here / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                found.update(f"{folder}/{path.name}\0".encode() + path.read_bytes())
    return found.digest()


def _version(library: str) -> str:
    return importlib.metadata.version(library)
