"""What has become of an engine's cached blocks since it was told of them last, as events.

The KV map is the truth, and events say how what was told differs from it. So nothing can be lost for good: what was
cached and given away between two looks need not be told, and who asks is told everything anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from actorserve.shm.kv_map.notes import BlockNotes, Note
from actorserve.shm.kv_map.reader import CachedBlocks

from .events import Cleared, Event, Removed, Stored, hash_of

MOST_BLOCKS = 256  # of one event


class BlockChanges:
    """Those of one engine."""

    def __init__(
        self, cached: CachedBlocks, notes: BlockNotes, block_size: int, name_of: Callable[[int], str | None]
    ) -> None:
        """`name_of` an adapter by its id."""
        self._cached, self._notes, self._size, self._name_of = cached, notes, block_size, name_of
        self._told: dict[int, bytes] = {}  # keys by block
        self._anew = True

    @property
    def blocks(self) -> int:
        """That are told of."""
        return len(self._told)

    def say_all(self) -> None:
        """The next events are of all blocks, behind the word that there is none."""
        self._anew = True

    def events(self) -> list[Event]:
        """Since the last time."""
        if self._anew:
            self._told.clear()
            for block in range(self._cached.blocks):
                self._cached.again(block)
        gone, new = self._changes()
        if self._anew or (gone and not self._told and not new):
            self._anew = False
            return [Cleared(), *self._stored(new)]
        told: list[Event] = []
        hashes = [hash_of(key) for key in gone]
        told += [Removed(hashes[start : start + MOST_BLOCKS]) for start in range(0, len(hashes), MOST_BLOCKS)]
        return [*told, *self._stored(new)]

    def _changes(self) -> tuple[list[bytes], dict[bytes, Note]]:
        """Keys that are there no more, and those that are now, with what stands in their blocks."""
        before, found = set[bytes](), dict[bytes, Note]()
        for block in self._cached.changed():
            if (key := self._told.pop(block, None)) is not None:
                before.add(key)
            if (noted := self._read(block)) is not None:
                self._told[block] = noted[0]
                found[noted[0]] = noted[1]
        return [key for key in before if key not in found], {key: found[key] for key in found if key not in before}

    def _read(self, block: int) -> tuple[bytes, Note] | None:
        looked = self._cached.look(block)
        if looked is None:
            return None
        version, key = looked
        note = self._notes.read(block)
        if self._cached.holds(block, version):
            return None if note is None else (key, note)
        self._cached.again(block)
        return None

    def _stored(self, new: dict[bytes, Note]) -> Iterator[Event]:
        """Parents before their children, and each run of blocks as one event."""
        children: dict[bytes | None, list[bytes]] = {}
        for key, note in new.items():
            children.setdefault(note.parent if note.parent in new else None, []).append(key)
        heads = children.get(None, [])
        while heads:
            run = [heads.pop()]
            while len(run) < MOST_BLOCKS and len(below := children.get(run[-1], [])) == 1:
                run += below
            heads += children.get(run[-1], [])
            yield self._event(run, new)

    def _event(self, run: list[bytes], new: dict[bytes, Note]) -> Stored:
        first = new[run[0]]
        tokens = [token for key in run for token in new[key].tokens]
        parent = None if first.parent is None else hash_of(first.parent)
        name = self._name_of(first.adapter) if first.adapter else None
        return Stored([hash_of(key) for key in run], parent, tokens, self._size, first.adapter or None, lora_name=name)
