"""Fetches that wait for what carries blocks: one carrier after the other is asked for those that are still missing,
until all have been asked, or the time is over. What has come by then is what the scheduler gets.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..protocol.topics.tiers import Fetch
from ..telemetry.gauges import PorterGauge as Gauge
from .carrier import Carrier, Kind, Reading
from .host import HostTier

ANSWER_S = 0.4  # a fetch is answered with what is there; its scheduler waits a little longer (scheduler/tiers/)
PEER_ANSWER_S = 1.8  # one that names a server that has the blocks


@dataclass(slots=True)
class Pending:
    """A Fetch some of whose blocks are being carried."""

    fetch: Fetch
    slots: list[int]
    keys: list[bytes]  # that are missing, from the first that was
    carriers: deque[Carrier]  # that have not been asked
    deadline: float
    carrier: Carrier | None = None
    reading: Reading | None = None
    taken: int = 0  # of what was read
    came: int = 0  # of all readings


class Fetching:
    """Those of a porter."""

    def __init__(
        self,
        host: HostTier,
        answer: Callable[[Fetch, list[int]], None],
        count: Callable[[Gauge, int], None],
    ) -> None:
        self._host, self._answer, self._count = host, answer, count
        self._pending: list[Pending] = []

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, fetch: Fetch, kind: Kind, keys: list[bytes], carriers: Iterable[Carrier]) -> None:
        """What is in memory is leased for it; the rest is asked for."""
        slots = self._in_memory(fetch, keys)
        self._count(Gauge.HITS_HOST, len(slots))
        wait_s = PEER_ANSWER_S if fetch.peer else ANSWER_S
        pending = Pending(fetch, slots, keys[len(slots) :], deque(carriers), time.monotonic() + wait_s)
        if self._ask_next(pending, kind):
            self._pending.append(pending)
        else:
            self._answer(fetch, slots)

    def _in_memory(self, fetch: Fetch, keys: list[bytes]) -> list[int]:
        """The slots of the first of these blocks, which are leased for it."""
        slots: list[int] = []
        for key in keys:
            slot = self._host.find(key)
            if slot is None:
                break
            self._host.arena.lease(slot, fetch.engine, fetch.number)
            slots.append(slot)
        return slots

    def _ask_next(self, pending: Pending, kind: Kind) -> bool:
        """False if nothing is missing, or nobody is left to be asked."""
        left = pending.keys[pending.came :]
        while left and pending.carriers:
            carrier = pending.carriers.popleft()
            if carrier.answers:
                pending.carrier, pending.reading, pending.taken = carrier, carrier.read(kind, left), 0
                return True
        return False

    def go_on(self, kind: Kind | None) -> int:
        """With what has come."""
        done, now = 0, time.monotonic()
        for pending in list(self._pending):
            reading = pending.reading
            assert reading is not None, "one that waits has asked somebody"
            was_done, fits = reading.done, True  # asked first: blocks come before it
            while fits and pending.taken < len(reading.blocks):
                fits = self._take_in(pending, reading, kind)
                done += fits
            is_over = not fits or now >= pending.deadline
            if is_over or (was_done and not (kind and self._ask_next(pending, kind))):
                self._over(pending, reading)
        return done

    def _over(self, pending: Pending, reading: Reading) -> None:
        reading.wanted = False
        self._pending.remove(pending)
        self._answer(pending.fetch, pending.slots)

    def _take_in(self, pending: Pending, reading: Reading, kind: Kind | None) -> bool:
        """One block that was read; False if it cannot be kept."""
        data, key = reading.blocks[pending.taken], reading.keys[pending.taken]
        if reading.kind != kind:
            return False
        slot = self._host.find(key)
        if slot is None:
            if (slot := self._put(key, data)) is None:
                return False
            assert pending.carrier is not None, "somebody has carried it"
            self._count(pending.carrier.hits, 1)
        self._host.arena.lease(slot, pending.fetch.engine, pending.fetch.number)
        pending.slots.append(slot)
        reading.blocks[pending.taken] = b""
        pending.taken += 1
        pending.came += 1
        return True

    def _put(self, key: bytes, data: bytes) -> int | None:
        slot = self._host.take()
        if slot is None:
            return None
        self._host.arena.empty(slot)[:] = data
        self._host.put(slot, key)
        return slot

    def drop(self) -> None:
        """Nothing of what is being carried is wanted."""
        for pending in list(self._pending):
            assert pending.reading is not None, "one that waits has asked somebody"
            pending.slots = []
            self._over(pending, pending.reading)
