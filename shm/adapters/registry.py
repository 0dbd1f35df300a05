"""Which adapters a server has: names, places and states, for all actors and for the successors of each.

One writer: the scheduler of the first engine, but for counts and refusals. Everybody may read. Layout: a header line,
then ENTRIES entries, then the counts, then the refusals.
    header       seeded (those of the command line are there), number of the last load
    line 0       state << 56 | id, lengths of name and path, stamp of the files that were read (0: none were yet)
    then         the name, the path
    counts       of each engine, running << 32 | waiting for each entry      its scheduler, or its link
    refusals     of each engine, the id of the load that cannot be used there, for each entry; 0: none      its link
An id is `load << ENTRY_BITS | entry`: it names one load of an adapter in the server's life and is never used again, so
that whatever was computed with another one is not taken for its own. A name may stand twice, while one load takes the
place of another: the newest that is ready counts.

Order of the stores, and what a death between any two leaves:
    load      number of the load; name, path, lengths; the state, LOADING with the id
              → a number that is not used; an entry that is still FREE, of which nobody reads more
    ready     the stamp; the state; then UNLOADING, of the load whose place it takes
              → a stamp of a load that is still to be read, and stamped once more; two ready ones of a name, of which
                the newest counts: a successor unloads the other
    free      the state, once what the worker has to drop is in its lane
              → it is unloaded, and dropped, once more
A reader loads the state, then the rest, then the state again: where they differ, it is another load (`read`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ..fence import load_fence, store_fence
from ..layout import CACHE_LINE, LINE_WORDS, LOW32, WORD_BYTES, check_place, whole
from ..segment import Segment

ENTRY_BITS = 10
ENTRIES = 1 << ENTRY_BITS
NAME_BYTES, PATH_BYTES = 256, 4096
SEEDED, LOADS = range(2)
STATE, LENGTHS, STAMP = range(3)
STATE_SHIFT = 56
ID_MASK = (1 << STATE_SHIFT) - 1
ENTRY_BYTES = whole(CACHE_LINE + NAME_BYTES + PATH_BYTES, CACHE_LINE)
ENTRY_WORDS = ENTRY_BYTES // WORD_BYTES


class AdapterState(IntEnum):
    """Of an entry."""

    FREE = 0
    LOADING = 1  # the worker reads it for the first time, and says whether it can be used
    READY = 2  # requests may name it
    UNLOADING = 3  # no new ones may; those that have it go on


class RegisteredAdapter(NamedTuple):
    """One load of an adapter."""

    id: int
    name: str
    path: str
    state: AdapterState
    running: int = 0  # sequences, of all engines
    waiting: int = 0
    stamp: int = 0  # of its files as they were read first; 0: they were not yet


def registry_bytes(engines: int = 1) -> int:
    """Of a segment."""
    return CACHE_LINE + ENTRIES * (ENTRY_BYTES + 2 * engines * WORD_BYTES)


class AdapterRegistry:
    """As anybody reads it."""

    def __init__(self, segment: Segment, offset: int, engines: int = 1) -> None:
        check_place(segment.size, offset, registry_bytes(engines), "registry of adapters")
        self._engines = engines
        self._segment = segment
        self._words = segment.words
        self._offset = offset
        self._header = offset // WORD_BYTES

    @property
    def seeded(self) -> bool:
        """Are those of the command line there?"""
        return bool(self._words[self._header + SEEDED])

    def all(self) -> list[RegisteredAdapter]:
        """Those that are not free, by id."""
        found = [self.read(entry) for entry, state in enumerate(self._states()) if state >> STATE_SHIFT]
        return sorted(one for one in found if one is not None)

    def _states(self) -> list[int]:
        first = self._first(0) + STATE
        return self._words[first : first + ENTRIES * ENTRY_WORDS : ENTRY_WORDS].tolist()

    def by_id(self, adapter: int) -> RegisteredAdapter | None:
        """The load of this number, while it is there."""
        found = self.read(adapter & (ENTRIES - 1))
        return found if found is not None and found.id == adapter else None

    def find(self, name: str) -> RegisteredAdapter | None:
        """The newest of this name that requests may have."""
        found = [one for one in self.all() if one.name == name and one.state is AdapterState.READY]
        return max(found, key=lambda one: one.id, default=None)

    def read(self, entry: int) -> RegisteredAdapter | None:
        """None if it is free, or is being written."""
        words, first = self._words, self._first(entry)
        state = words[first + STATE]  # SYNC: adapters.state, pairs with AdapterRegistryWriter
        if not state >> STATE_SHIFT:
            return None
        load_fence()
        lengths, stamp = words[first + LENGTHS], words[first + STAMP]
        counts = [words[self._count_at(engine, entry)] for engine in range(self._engines)]
        running, waiting = sum(count >> 32 for count in counts), sum(count & LOW32 for count in counts)
        place = self._place(entry)
        memory = self._segment.map
        name = bytes(memory[place : place + min(lengths >> 32, NAME_BYTES)])
        path = bytes(memory[place + NAME_BYTES : place + NAME_BYTES + min(lengths & LOW32, PATH_BYTES)])
        load_fence()
        if words[first + STATE] & ID_MASK != state & ID_MASK:
            return None
        kind = AdapterState(words[first + STATE] >> STATE_SHIFT)
        if kind is AdapterState.FREE:
            return None
        return RegisteredAdapter(state & ID_MASK, _text(name), _text(path), kind, running, waiting, stamp)

    def _first(self, entry: int) -> int:
        return self._header + LINE_WORDS + entry * ENTRY_WORDS

    def _count_at(self, engine: int, entry: int) -> int:
        return self._header + LINE_WORDS + ENTRIES * ENTRY_WORDS + engine * ENTRIES + entry

    def is_refused(self, adapter: int, engine: int) -> bool:
        """Has that engine said that it cannot have this load?"""
        return bool(adapter) and self._words[self._refusal_at(engine, adapter & (ENTRIES - 1))] == adapter

    def _refusal_at(self, engine: int, entry: int) -> int:
        return self._count_at(self._engines + engine, entry)

    def _place(self, entry: int) -> int:
        """Where its name begins, in bytes of the segment."""
        return self._offset + CACHE_LINE + entry * ENTRY_BYTES + CACHE_LINE


class AdapterRegistryWriter(AdapterRegistry):
    """As a scheduler has it: that of the first engine is the one writer, the others count who has what there."""

    def __init__(self, segment: Segment, offset: int, engines: int = 1, engine: int = 0) -> None:
        super().__init__(segment, offset, engines)
        self._engine = engine

    @property
    def keeps(self) -> bool:
        """Is it the one that writes?"""
        return self._engine == 0

    def set_seeded(self) -> None:
        """Those of the command line are there."""
        store_fence()
        self._words[self._header + SEEDED] = 1

    def add(self, name: str, path: str, state: AdapterState = AdapterState.LOADING, stamp: int = 0) -> int | None:
        """A load of this adapter begins, or is done already; its id. None if no entry is free."""
        entry = next((one for one, state in enumerate(self._states()) if not state >> STATE_SHIFT), None)
        if entry is None:
            return None
        words, first, place = self._words, self._first(entry), self._place(entry)
        words[self._header + LOADS] += 1
        adapter = words[self._header + LOADS] << ENTRY_BITS | entry
        own, where = _bytes(name), _bytes(path)
        self._segment.map[place : place + len(own)] = own
        self._segment.map[place + NAME_BYTES : place + NAME_BYTES + len(where)] = where
        words[first + LENGTHS] = len(own) << 32 | len(where)
        words[first + STAMP] = stamp
        self._set(adapter, state)
        return adapter

    def set_stamp(self, adapter: int, stamp: int) -> None:
        """Of a load that is there: these files have been read."""
        self._words[self._first(adapter & (ENTRIES - 1)) + STAMP] = stamp

    def begin_behind(self, loads: int) -> None:
        """The first load has a number above this: another than in servers whose blocks it may meet."""
        self._words[self._header + LOADS] = loads

    def set_state(self, adapter: int, state: AdapterState) -> None:
        """Of a load that is there."""
        self._set(adapter, state)

    def count(self, adapter: int, running: int, waiting: int) -> None:
        """How many sequences of this engine have it."""
        self._words[self._count_at(self._engine, adapter & (ENTRIES - 1))] = running << 32 | waiting

    def forget_counts(self) -> None:
        """A life of this engine's scheduler begins: it counts anew."""
        first = self._count_at(self._engine, 0)
        for at in range(first, first + ENTRIES):
            self._words[at] = 0

    def refuse(self, adapter: int) -> None:
        """This engine cannot have that load."""
        self._words[self._refusal_at(self._engine, adapter & (ENTRIES - 1))] = adapter

    def forget_refusals(self) -> None:
        """Nobody knows any more what this engine cannot have."""
        first = self._refusal_at(self._engine, 0)
        for at in range(first, first + ENTRIES):
            self._words[at] = 0

    def _set(self, adapter: int, state: AdapterState) -> None:
        store_fence()
        self._words[self._first(adapter & (ENTRIES - 1)) + STATE] = (
            state << STATE_SHIFT | adapter
        )  # SYNC: adapters.state


def too_long(name: str, path: str) -> str:
    """Which of the two is longer than an entry has room for; nothing if both fit."""
    if len(_bytes(name)) > NAME_BYTES:
        return f"a name has at most {NAME_BYTES} bytes"
    return f"a path has at most {PATH_BYTES} bytes" if len(_bytes(path)) > PATH_BYTES else ""


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
