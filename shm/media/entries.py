"""One media actor's part of the arena, as that actor alone writes it: entries, and the memory that they take.

What it knows of them stands in the entries' words (arena.py), so that a successor goes on with them: the same cache,
and nothing of a running request lost. Which are held it asks of the slots that hold them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..fence import store_fence
from ..layout import CACHE_LINE, HASH_BYTES, WORD_BYTES, make_ref, whole
from ..pages import give_back
from .arena import BYTES, CHUNK, DESCRIBED, DIGEST, ENTRIES, HELD, OFFSET, SEQUENCE, USED, MediaArena

IsLive = Callable[[int], bool]
LONGEST = 1 << 40  # an offset of as many bytes as any has, packed


class TooLarge(ValueError):
    """It does not fit, however much of the memory is free."""


@dataclass
class Entry:
    """One that can be found: its number over all parts, and what its words say."""

    number: int
    sequence: int
    digest: bytes
    offset: int
    size: int  # of its extent
    described: int
    used: int


class MediaEntries:
    """The entries of one part. `is_live`: does this use of a slot still run?"""

    def __init__(self, arena: MediaArena, part: int, is_live: IsLive) -> None:
        self._arena, self._is_live = arena, is_live
        self._first = part * ENTRIES
        self.room = arena.sizes.part_bytes
        self._start = arena.sizes.data_start + part * self.room
        self._by_digest: dict[bytes, Entry] = {}
        self._extents: list[tuple[int, int]] = []  # (offset, end) of all entries, in order
        self._unused: list[int] = []
        self._holders: dict[int, list[tuple[int, int]]] = {}  # by ref
        self._pinned: set[int] = set()
        self._take_over()

    def _take_over(self) -> None:
        """What a predecessor left: entries that are whole, and uses of slots that hold some."""
        for number in reversed(range(self._first, self._first + ENTRIES)):
            entry = self._read(number)
            if entry is None:
                self._unused.append(number)
            else:
                self._by_digest[entry.digest] = entry
                insort(self._extents, (entry.offset, entry.offset + entry.size))
        for slot in range(self._arena.sizes.slots):
            generation = self._arena.words[self._arena.slot_word(slot) + HELD] >> 32
            mine = [one for one in self._arena.holds(slot, generation) if self._is_mine(one[0])] if generation else []
            if mine and self._is_live(make_ref(generation, slot)):
                self._holders[make_ref(generation, slot)] = mine

    def _is_mine(self, number: int) -> bool:
        return self._first <= number < self._first + ENTRIES

    def _read(self, number: int) -> Entry | None:
        words, at = self._arena.words, self._arena.entry_word(number)
        if (sequence := words[at + SEQUENCE]) % 2 or not sequence:
            return None
        digest = words[at + DIGEST : at + DIGEST + HASH_BYTES // WORD_BYTES].tobytes()
        place = words[at + OFFSET], words[at + BYTES]
        return Entry(number, sequence, digest, *place, words[at + DESCRIBED], words[at + USED])

    # --- finding and making --------------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Bytes that entries take, held or not."""
        return sum(end - start for start, end in self._extents)

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, digest: bytes, now: int) -> Entry | None:
        """The entry with this digest."""
        entry = self._by_digest.get(digest)
        if entry is not None:
            entry.used = self._arena.words[self._arena.entry_word(entry.number) + USED] = now
        return entry

    def all(self) -> list[Entry]:
        """Those that can be found."""
        return list(self._by_digest.values())

    def description(self, entry: Entry) -> bytes:
        """What was said of it when it was made."""
        return self._arena.map[entry.offset : entry.offset + entry.described]

    def make(
        self, digest: bytes, arrays: Sequence[np.ndarray], describe: Callable[[list[int]], bytes], now: int
    ) -> Entry | None:
        """A new entry with these arrays; `describe` is told where each will lie. None if there is no room for it now,
        TooLarge if there never will be.
        """
        sizes = [whole(array.nbytes, CACHE_LINE) for array in arrays]
        longest = whole(len(describe([LONGEST] * len(arrays))), CACHE_LINE)
        size = whole(longest + sum(sizes), CHUNK)
        if size > self.room:
            raise TooLarge(f"{size} bytes of {self.room}")
        offset = self._allocate(size)
        if offset is None:
            return None
        number = self._unused.pop()
        sequence = self._arena.words[self._arena.entry_word(number) + SEQUENCE]
        starts = [offset + longest + sum(sizes[:index]) for index in range(len(sizes))]
        entry = Entry(number, sequence + 2 - sequence % 2, digest, offset, size, 0, now)
        insort(self._extents, (offset, offset + size))
        self._by_digest[digest] = entry
        self._write(entry, arrays, starts, describe(starts))
        return entry

    def _write(self, entry: Entry, arrays: Sequence[np.ndarray], starts: list[int], description: bytes) -> None:
        arena, at = self._arena, self._arena.entry_word(entry.number)
        arena.words[at + SEQUENCE] = entry.sequence - 1  # SYNC: media.entry: nobody finds it, nor takes it for another
        store_fence()
        entry.described = len(description)
        arena.map[entry.offset : entry.offset + len(description)] = description
        for start, array in zip(starts, arrays, strict=True):
            if array.nbytes:
                arena.map[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self._write_digest(entry)
        arena.words[at + OFFSET], arena.words[at + BYTES] = entry.offset, entry.size
        arena.words[at + DESCRIBED], arena.words[at + USED] = entry.described, entry.used
        store_fence()
        arena.words[at + SEQUENCE] = entry.sequence

    # --- who has what --------------------------------------------------------------------------------------------

    def pin(self, entries: Iterable[Entry]) -> None:
        """These are wanted by what is being made now, and no others: they stay."""
        self._pinned = {entry.number for entry in entries}

    def hold(self, refs: Iterable[int], entries: Sequence[Entry]) -> None:
        """These uses of slots have these entries until they end."""
        holds = [(entry.number, entry.sequence) for entry in entries]
        for ref in refs:
            self._arena.write_holds(ref, holds)
            self._holders[ref] = holds

    def let_go(self) -> None:
        """Look which uses have ended."""
        for ref in [ref for ref in self._holders if not self._is_live(ref)]:
            del self._holders[ref]

    @property
    def held(self) -> set[int]:
        """The numbers of entries whose memory is not given away."""
        return {number for holds in self._holders.values() for number, _ in holds} | self._pinned

    @property
    def held_bytes(self) -> int:
        """What is not given away: nothing, where nothing runs."""
        held = self.held
        return sum(entry.size for entry in self._by_digest.values() if entry.number in held) if held else 0

    def forget(self) -> int:
        """Nothing is found again that nobody has; returns how many that were."""
        self.let_go()
        held = self.held
        idle = [entry for entry in self._by_digest.values() if entry.number not in held]
        for entry in idle:
            self._drop(entry)
            give_back(self._arena.map, entry.offset, entry.size)
        for entry in list(self._by_digest.values()):  # those in use stay where they are, under a name that nobody seeks
            self._rename(entry, entry.sequence.to_bytes(8, "little") + entry.number.to_bytes(8, "little"))
        return len(idle)

    def _rename(self, entry: Entry, digest: bytes) -> None:
        del self._by_digest[entry.digest]
        entry.digest = digest
        self._by_digest[digest] = entry
        self._write_digest(entry)

    def _write_digest(self, entry: Entry) -> None:
        at = self._arena.entry_word(entry.number) + DIGEST
        self._arena.words[at] = int.from_bytes(entry.digest[:8], "little")
        self._arena.words[at + 1] = int.from_bytes(entry.digest[8:], "little")

    def _drop(self, entry: Entry) -> None:
        self._arena.words[self._arena.entry_word(entry.number) + SEQUENCE] = entry.sequence + 1  # SYNC: media.entry
        store_fence()
        del self._by_digest[entry.digest]
        self._extents.remove((entry.offset, entry.offset + entry.size))
        self._unused.append(entry.number)

    def _allocate(self, size: int) -> int | None:
        """Where so many bytes are free; what was not wanted for longest goes for that."""
        if self._unused and (offset := self._gap(size)) is not None:
            return offset
        self.let_go()
        held = self.held
        for entry in sorted(self._by_digest.values(), key=lambda entry: entry.used):
            if entry.number in held:
                continue
            self._drop(entry)
            if (offset := self._gap(size)) is not None:
                return offset
        return None

    def _gap(self, size: int) -> int | None:
        end = self._start
        for start, behind in self._extents:
            if start - end >= size:
                return end
            end = behind
        return end if self._start + self.room - end >= size else None
