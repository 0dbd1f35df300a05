"""What the stores behind the arena have not got yet: the keys of blocks that are to be written to each."""

from __future__ import annotations

from collections import deque

from .carrier import Kind, Store
from .host import HostTier

MOST_UNSAVED = 1 << 14  # blocks in memory that wait to be written


class Saving:
    """To all stores of a porter."""

    def __init__(self, host: HostTier, stores: list[Store]) -> None:
        self._host = host
        self._unsaved: list[tuple[Store, deque[bytes]]] = [(store, deque()) for store in stores]
        self._forgotten: deque[tuple[int, Store]] = deque()  # wishes that a thread has done
        self._forgetting: dict[int, list[Store]] = {}

    def __bool__(self) -> bool:
        """Is anything to be written?"""
        return any(keys for _, keys in self._unsaved)

    def offer(self, kind: Kind, key: bytes) -> None:
        """A block that is in memory."""
        for store, keys in self._unsaved:
            if len(keys) < MOST_UNSAVED and not store.has(kind, key):
                keys.append(key)

    def save(self, kind: Kind) -> int:
        """Give each what it does not have, as much as it takes now."""
        written = 0
        for store, keys in self._unsaved:
            while keys and store.takes:
                key = keys.popleft()
                slot = self._host.find(key)
                if slot is not None:
                    store.write(kind, key, bytes(self._host.arena.data(slot)))
                    written += 1
        return written

    def clear(self) -> None:
        """Nothing is to be written."""
        for _, keys in self._unsaved:
            keys.clear()

    def forget(self, kind: Kind, wish: int) -> None:
        """All stores are to forget what they have of this kind; `settle` hears when all have."""
        if not self._unsaved:
            self._host.arena.has_forgotten(wish)
            return
        self._forgetting[wish] = [store for store, _ in self._unsaved]
        for store, _ in self._unsaved:
            store.forget(kind, lambda store=store: self._forgotten.append((wish, store)))  # type: ignore[misc]

    def settle(self) -> None:
        """Of wishes that all have done."""
        while self._forgotten:
            wish, store = self._forgotten.popleft()
            left = self._forgetting.get(wish, [])
            if store in left:
                left.remove(store)
                if not left:
                    del self._forgetting[wish]
                    self._host.arena.has_forgotten(wish)
