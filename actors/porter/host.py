"""Blocks in the host's memory: which slot of the arena has which, and which is given up for the next."""

from __future__ import annotations

from collections import Counter, OrderedDict

from actorserve.shm.kv_tier.arena import TierArena


class HostTier:
    """The porter's side of the arena. The least recently used goes first, but for what a fetch has, or another server
    that reads it: that is held, in this process's memory alone, by whoever sends it (peers/serving.py).
    """

    def __init__(self, arena: TierArena) -> None:
        self.arena = arena
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._free: list[int] = []
        self._held: Counter[int] = Counter()
        self._find()

    def _find(self) -> None:
        """What is there, of a predecessor."""
        self._slots = OrderedDict(self.arena.found())
        taken = set(self._slots.values())
        self._free = [slot for slot in range(self.arena.count) if slot not in taken]

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slots

    def keys(self) -> list[bytes]:
        """Of all blocks, the least recently used first."""
        return list(self._slots)

    def format(self, fingerprint: bytes, slot_bytes: int) -> bool:
        """Be for blocks of this kind; False while slots of another are in use."""
        arena = self.arena
        if arena.count and arena.fingerprint == fingerprint and arena.slot_bytes == slot_bytes:
            return True
        if arena.count and (arena.in_use or self._held):
            return False
        arena.format(fingerprint, slot_bytes)
        self._find()
        return True

    def find(self, key: bytes) -> int | None:
        """Its slot, which is used now."""
        slot = self._slots.get(key)
        if slot is not None:
            self._slots.move_to_end(key)
        return slot

    def take(self) -> int | None:
        """A slot to be written to; None while all are in use."""
        for index, slot in enumerate(self._free):
            if self._is_free(slot):
                return self._free.pop(index)
        for key, slot in self._slots.items():
            if self._is_free(slot):
                del self._slots[key]
                return slot
        return None

    def _is_free(self, slot: int) -> bool:
        return not self._held[slot] and not self.arena.is_leased(slot)

    def hold(self, slots: list[int]) -> None:
        """Their contents stay until `release`."""
        self._held.update(slots)

    def release(self, slots: list[int]) -> None:
        """So often as they were held."""
        self._held.subtract(slots)
        self._held = +self._held

    @property
    def held(self) -> int:
        """Slots that others read."""
        return len(self._held)

    def put(self, slot: int, key: bytes) -> None:
        """It has been written."""
        self.arena.fill(slot, key)
        self._slots[key] = slot

    def give_back(self, slot: int) -> None:
        """What was to be written is not."""
        self._free.append(slot)

    def forget(self) -> None:
        """Nothing is found any more."""
        for slot in self._slots.values():
            self.arena.empty(slot)
        self._free += self._slots.values()
        self._slots.clear()
