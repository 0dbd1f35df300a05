"""All replicas, and which of them a request goes to: where most of its prompt was computed, as far as load allows.

A cost in tokens: those of the prompt that were not seen there, 16 for each request that it has, and 0.3 of what waits
to be computed. A heavier term of load would send prompts away from where they are known, a lighter one would send all
to one replica. What was seen where is a guess by what was sent, and forgotten when a replica comes back from a death.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from .replica import Replica
from .request import BLOCK, RoutedRequest

BYTES_A_TOKEN = 4
TOKENS_A_REQUEST = 16
PENDING = 0.3
MOST_BLOCKS = 200_000  # that are remembered
NO_RESTS: Mapping[Replica, float] = MappingProxyType({})


class Fleet:
    """`changed` is set when a replica may be chosen that could not before, `came` when there is one more."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self.all = [Replica(address) for address in addresses]  # each keeps its place; one that is gone may leave it
        self.changed, self.came = asyncio.Event(), asyncio.Event()
        self._of_names: dict[str, list[Replica]] = {}
        self._seen: OrderedDict[bytes, int] = OrderedDict()  # hash of a block: a bit for each replica
        self._turn = 0
        self.looked = self.found = 0  # bytes of prompts; and of them, those that were known where they went

    @property
    def replicas(self) -> list[Replica]:
        """Those that are there, or have something to end."""
        return [one for one in self.all if not one.is_gone or one.in_flight]

    def name_has(self, name: str, addresses: list[str]) -> tuple[list[str], list[str]]:
        """It stands for these now: which of them are new, and which others it does not stand for any more."""
        known = {one.address: one for one in self._of_names.get(name, [])}
        given = {one.address for one in self.all if one.address not in known and not one.is_gone}
        came = [address for address in addresses if address not in known and address not in given]
        for address in came:
            known[address] = self._meet(address)
        went = [address for address in known if address not in addresses]
        for address in went:
            known.pop(address).is_gone = True
        self._of_names[name] = list(known.values())
        if came:
            self.came.set()
        return came, went

    def _meet(self, address: str) -> Replica:
        """In the place of one that is gone, or behind all. It knows nothing of what that one knew."""
        replica = Replica(address)
        free = next((index for index, one in enumerate(self.all) if one.is_gone and not one.in_flight), None)
        if free is None:
            self.all.append(replica)
        else:
            self.forget(self.all[free])
            self.all[free] = replica
        return replica

    def find(self, address: str) -> Replica | None:
        return next((replica for replica in self.replicas if replica.address == address.rstrip("/")), None)

    def choose(self, asked: RoutedRequest, but: Collection[Replica] = ()) -> Replica | None:
        """The one that costs least; None while none takes it."""
        able = [index for index, one in enumerate(self.all) if one not in but and one.takes(asked.model)]
        # a name that nobody tells of, such as an adapter that is loaded when it is asked for
        if not able and asked.model:
            able = [index for index, one in enumerate(self.all) if one not in but and one.takes("")]
        if not able:
            return None
        if asked.key:
            return self.all[max(able, key=lambda index: self._rank(asked.key, index))]
        known = self._known(asked.prefix)
        self._turn += 1
        chosen = min(able, key=lambda index: (self._cost(asked, index, known), (index - self._turn) % len(able)))
        self.looked += asked.size
        self.found += min(asked.size, known.get(chosen, 0))
        self._remember(asked.prefix, chosen)
        return self.all[chosen]

    async def another(
        self, asked: RoutedRequest, avoid: Collection[Replica], until: float, rests: Mapping[Replica, float] = NO_RESTS
    ) -> Replica | None:
        """One that takes it, as soon as there is one; at last also one to be avoided, once a look has found it ready
        since it failed: one that is dead would use up all tries in no time. None when it is `until`, in monotonic time,
        as are the ends of `rests`: who is not to be asked before.
        """
        while True:
            now = time.monotonic()
            resting = [one for one, end in rests.items() if end > now]
            unproved = [one for one in avoid if not one.is_proved]
            replica = self.choose(asked, [*avoid, *resting]) or self.choose(asked, [*unproved, *resting])
            if replica is not None or now >= until:
                return replica
            self.changed.clear()
            shut = [one.shut_until for one in self.all if one.shut_until > now]  # nobody tells that the breaker is back
            await within(self.changed, min([until, *shut, *(rests[one] for one in resting)]) - now)

    def forget(self, replica: Replica) -> None:
        """It may have lost what it knew."""
        mask = ~(1 << self.all.index(replica))
        for block in self._seen:
            self._seen[block] &= mask

    def _rank(self, key: str, index: int) -> bytes:
        """The same replica for a key as long as it is there, whoever else comes or goes."""
        return hashlib.blake2b(f"{key}\0{self.all[index].address}".encode(), digest_size=8).digest()

    def _known(self, prefix: list[bytes]) -> dict[int, int]:
        """For replicas that have seen the begin of this prompt: so many bytes of it."""
        known: dict[int, int] = {}
        left = (1 << len(self.all)) - 1
        for count, block in enumerate(prefix, 1):
            left &= self._seen.get(block, 0)
            if not left:
                break
            for index in range(len(self.all)):
                if left >> index & 1:
                    known[index] = count * BLOCK
        return known

    def _cost(self, asked: RoutedRequest, index: int, known: dict[int, int]) -> float:
        replica = self.all[index]
        fresh = max(0, asked.size - known.get(index, 0)) + PENDING * replica.pending
        return fresh / BYTES_A_TOKEN + TOKENS_A_REQUEST * replica.load

    def _remember(self, prefix: list[bytes], index: int) -> None:
        for block in prefix:
            self._seen[block] = self._seen.pop(block, 0) | 1 << index
        while len(self._seen) > MOST_BLOCKS:
            self._seen.popitem(last=False)


async def within(event: asyncio.Event, seconds: float) -> None:
    """Wait for it, no longer than so. Not by wait_for, which in Python 3.11 takes no notice of being cancelled where
    the event comes at the same moment: a loop that waits so would not end.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
