"""Which adapters the worker has in memory, and which make room for others: the one that was used least lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from actorserve.shm.adapters.registry import AdapterState, RegisteredAdapter

from ...protocol.topics.adapters import AdapterChanged, AdapterRead, AdapterReplaced, DropAdapter, ReadAdapter

ToOthers = ReadAdapter | DropAdapter | AdapterChanged | AdapterReplaced


class AdapterLimits(NamedTuple):
    """What the options allow."""

    in_batch: int
    in_memory: int
    workers: int  # of a group, that all must have read one


class AdapterMemory:
    """That of one life of the worker after the other; what it is to read and to drop goes to the outbox."""

    def __init__(self, limits: AdapterLimits, outbox: deque[ToOthers], running: Callable[[], set[int]]) -> None:
        """`running`: those whose sequences have rows."""
        self._limits, self._outbox, self._running = limits, outbox, running
        self._left: dict[int, set[int]] = {}  # members that have not read it yet, by id; least lately used first
        self._stamps: dict[int, int] = {}  # of what members have read, of loads that not all of them have read yet

    def meet(self, there: Iterable[int]) -> None:
        """A life of the worker begins with these."""
        self._left = {adapter: set() for adapter in there}

    def __contains__(self, adapter: int) -> bool:
        """Is it there, or being read?"""
        return adapter in self._left

    def all(self) -> list[int]:
        """Those that are there, or are being read."""
        return list(self._left)

    def use(self, adapter: int) -> bool:
        """One of them is wanted; have all members read it?"""
        self._left[adapter] = self._left.pop(adapter)
        return not self._left[adapter]

    def read(self, one: RegisteredAdapter) -> None:
        """If there is no room, it is asked for again when there is; one that is being loaded waits for none."""
        if not self.make_room(self._limits.in_memory - 1) and one.state is not AdapterState.LOADING:
            return
        self._left[one.id] = set(range(self._limits.workers))
        self._outbox.append(ReadAdapter(one.id, one.path, one.stamp))

    def is_as_others_read(self, message: AdapterRead) -> bool:
        """Has this member read the same files as the first one?"""
        first = self._stamps.setdefault(message.adapter, message.stamp) if message.stamp else 0
        return first == message.stamp

    def has_read(self, message: AdapterRead) -> bool:
        """A member has it; have all?"""
        left = self._left[message.adapter]
        left.discard(message.rank)
        if not left:
            self._stamps.pop(message.adapter, None)
        return not left

    def make_room(self, most: int | None = None) -> bool:
        """Let the least lately used ones give way that nobody needs, until there are so many; are there?"""
        most = self._limits.in_memory if most is None else most
        busy = {*self._running(), *(adapter for adapter, left in self._left.items() if left)}
        while len(self._left) > most:
            oldest = next((adapter for adapter in self._left if adapter not in busy), None)
            if oldest is None:
                return False
            self.drop(oldest)
        return True

    def drop(self, adapter: int) -> None:
        """The worker lets it go."""
        del self._left[adapter]
        self._stamps.pop(adapter, None)
        self._outbox.append(DropAdapter(adapter))
