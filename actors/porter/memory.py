"""The KV memory of one engine's workers, as the porter reads it: what it means, and blocks out of it.

It maps none of the files: a worker that begins anew makes its file empty, and a read of it is short then, where a load
would be a SIGBUS. What was read counts only if, behind it, the KV map still calls the block cached by the same key and
has all the time, and the files are still those of the worker that the map is about.
"""

from __future__ import annotations

import os
from pathlib import Path

from actorserve.shm.kv_map.reader import CachedBlocks
from actorserve.shm.kv_tier.blocks import PLACE, KVDescription, first_life, read_block, read_description
from actorserve.shm.layout import PAGE
from actorserve.shm.weights import WeightsRecord

from ..model.forms import as_read
from ..options.config import ConfigError
from ..runtime.process import Context


class EngineMemory:
    """Of one engine."""

    def __init__(self, context: Context, engine: int) -> None:
        system = context.system
        self.map = CachedBlocks(context.segment, system.kv_map_offsets[engine], system.kv_map_sizes)
        self._files = [context.files[f"kv-{worker.name}"] for worker in system.workers_of(engine)]
        self._record = WeightsRecord(context.files["weights"], engine)
        self._config, self._own = context.config, context.model.folder
        self._pages: list[bytes] = []
        self.parts: list[KVDescription] = []  # of each of the group; empty while they are not known

    def look(self) -> bool:
        """Read what the workers say of their memory; False if it is the same as before."""
        pages = [os.pread(fd, PAGE, 0) for fd in self._files]
        if pages == self._pages:
            return False
        self._pages = pages
        parts = [read_description(page) for page in pages]
        self.parts = [part for part in parts if part is not None]
        alike = len({part.blocks for part in self.parts}) == 1  # stages have blocks of their own sizes
        if len(self.parts) < len(parts) or not alike:
            self.parts = []
        return True

    @property
    def folder(self) -> str:
        """Where the weights lie that the engine is to have, as its workers read them."""
        other = self._record.read()[1]
        try:
            return str(as_read(self._config, Path(other))) if other else self._own
        except ConfigError:  # the workers tell of it, and have not loaded it
            return other

    @property
    def weights(self) -> bytes | None:
        """Marks of the files that all of the group have loaded."""
        found = {part.weights for part in self.parts}
        return found.pop() if len(found) == 1 else None

    @property
    def block_bytes(self) -> int:
        """Of a block in all of the group."""
        return sum(part.block_bytes for part in self.parts)

    def _is_the_maps(self) -> bool:
        """Is the memory the one that the KV map is about?"""
        lives = [first_life(page) for page in self._pages]
        return (
            bool(self.parts)
            and self.map.blocks == self.parts[0].blocks
            and all(0 < life <= self.map.worker for life in lives)
        )

    def copy(self, block: int, into: memoryview) -> bytes | None:
        """Read a cached block; its key, or None if it is not cached any more, or was changed meanwhile."""
        found = self.map.look(block)
        if found is None or not self._is_the_maps() or block >= self.parts[0].blocks:
            return None
        version, key = found
        at = 0
        for fd, part in zip(self._files, self.parts, strict=True):
            end = at + part.block_bytes
            if not read_block(fd, part, block, into[at:end]):
                return None
            at = end
        heads = [os.pread(fd, PLACE, 0) for fd in self._files]
        same = heads == [page[:PLACE] for page in self._pages]
        return key if same and self.map.holds(block, version) else None
