"""KV blocks: who holds which, which hold a known prefix, and which are free. Knows no sequence and no message.

A block is in exactly one of three states:
  held    refs > 0; may carry the hash of the prefix that ends with it
  idle    refs = 0, carries a hash: contents can be found again, or are evicted, least recently used first
  clean   refs = 0, no hash: nothing to lose
What carries a hash is told to the KV map, for a successor: before a block is given away it carries none there either.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol


class CacheMap(Protocol):
    """Where a successor finds what is cached, as shm.kv_map has it."""

    def cache(self, block: int, key: bytes, /) -> None: ...

    def uncache(self, block: int, /) -> None: ...

    def reset_cache(self) -> int: ...

    def cached(self) -> dict[int, bytes]: ...


class BlockPool:
    """Reference-counted blocks with a prefix cache. Runs of adjacent blocks are preferred: attention on a CPU reads
    a run as one view, and a GPU gains from it as well."""

    def __init__(self, count: int, kv: CacheMap) -> None:
        self.count = count
        self._kv = kv
        self._clean = bytearray(b"\x01" * count)  # a byte a block, so that bytearray.find finds runs
        self._clean_count = count
        self._refs = [0] * count
        self._hash_of: dict[int, bytes] = {}
        self._by_hash: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._hint = 0  # where the next new run is looked for

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self._clean_count + len(self._idle)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of the longest cached prefix of these chained hashes. They are not held yet."""
        blocks = []
        for key in hashes:
            block = self._by_hash.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def find(self, key: bytes) -> int | None:
        """The block that is cached by this key."""
        return self._by_hash.get(key)

    def is_cached(self, block: int) -> bool:
        """Is it found by a key?"""
        return block in self._hash_of

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for each of these blocks, which `match` found."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._idle[block]
            self._refs[block] += 1

    def allocate(self, count: int, after: int | None = None, num_spare: int = 0) -> list[int] | None:
        """`count` blocks with one holder, or None when there are not so many free.

        Adjacent if possible: behind block `after`, else where `num_spare` more follow.
        """
        if count > self.free:
            return None
        while self._clean_count < count:
            self._evict()
        blocks = self._choose(count, after, num_spare)
        for block in blocks:
            self._clean[block] = 0
            self._refs[block] = 1
        self._clean_count -= count
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each; the last blocks of a sequence are forgotten first."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            if block in self._hash_of:
                self._idle[block] = None
            else:
                self._make_clean(block)

    def register(self, block: int, key: bytes) -> None:
        """The held block's contents are final and stand for the prefix `key`. The first block of a prefix stays."""
        if key not in self._by_hash and block not in self._hash_of:
            self._by_hash[key] = block
            self._hash_of[block] = key
            self._kv.cache(block, key)

    def adopt(self, holders: Iterable[Sequence[int]], cached: dict[int, bytes]) -> None:
        """Into a new pool: what a predecessor's sequences hold and its cache knew; the rest is clean."""
        self._hash_of, self._by_hash = dict(cached), {key: block for block, key in cached.items()}
        for blocks in holders:
            for block in blocks:
                self._refs[block] += 1
        self._idle.update((block, None) for block in cached if not self._refs[block])
        self._clean = bytearray(not (refs or block in cached) for block, refs in enumerate(self._refs))
        self._clean_count = sum(self._clean)

    def forget_cache(self) -> int:
        """Forget every cached prefix, the map first; held blocks stay held. Returns how many blocks could be found."""
        found = self._kv.reset_cache()
        for block in self._idle:
            self._make_clean(block)
        self._idle.clear()
        self._by_hash.clear()
        self._hash_of.clear()
        return found

    def _choose(self, count: int, after: int | None, num_spare: int) -> list[int]:
        run = b"\x01" * count
        if after is not None and self._clean.startswith(run, after + 1):
            return list(range(after + 1, after + 1 + count))
        spacious = b"\x01" * (count + num_spare)
        start = self._clean.find(spacious, self._hint)
        if start < 0:
            start = self._clean.find(spacious)
        if start < 0:
            start = self._clean.find(run)
        if start >= 0:
            self._hint = start + len(spacious)
            return list(range(start, start + count))
        return self._scattered(count)

    def _scattered(self, count: int) -> list[int]:
        blocks, position = [], -1
        for _ in range(count):
            position = self._clean.find(1, position + 1)
            blocks.append(position)
        return blocks

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        self._kv.uncache(block)
        del self._by_hash[self._hash_of.pop(block)]
        self._make_clean(block)

    def _make_clean(self, block: int) -> None:
        self._clean[block] = 1
        self._clean_count += 1

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Every block in one state, every count the number of its holders; AssertionError says which is not."""
        counts = [0] * self.count
        for blocks in holders:
            for block in blocks:
                counts[block] += 1
        for block in range(self.count):
            clean, idle, held = bool(self._clean[block]), block in self._idle, self._refs[block] > 0
            refs = self._refs[block]
            assert counts[block] == refs, f"block {block}: {refs} refs, {counts[block]} holders"
            assert clean + idle + held == 1, f"block {block}: clean {clean}, idle {idle}, held {held}"
            assert not (clean and block in self._hash_of), f"block {block} is clean and carries a hash"
            assert not (idle and block not in self._hash_of), f"block {block} is idle and carries no hash"
        assert self._clean_count == sum(self._clean), "the count of clean blocks is wrong"
        assert {key: block for block, key in self._hash_of.items()} == self._by_hash, "hashes and blocks disagree"
        if self.count:  # before, the map is still a predecessor's
            assert self._kv.cached() == self._hash_of, "the KV map's cached blocks are not the pool's"
