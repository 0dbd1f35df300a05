"""Who gets a connection when there are as many as there may be. It knows numbers and addresses, and no socket.

A client is an address; of IPv6 the network of 64 bits, all of which is one subscriber's. While there is room anybody
may have all of it: a proxy, or a load generator beside the server, is one address with all of them. When none is left
    a client that has fewer than another    gets one for which the one that has most gives up an idle one: HTTP lets a
                                            server close those, and clients open others
    anybody else, or if none is idle        gets one of the reserve, on which one question is answered of those that are
                                            asked about the server itself (/health), and 503 to everything else
The reserve is for whoever came last: for its sake the client that has most of it loses its oldest one. Who asks at once
has the answer by then; who holds it open in silence holds it up for nobody.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

RESERVE = 16  # connections beyond the most that there may be
MOST_WAITING = 16  # newcomers for whom there is no room yet
BEYOND = RESERVE + MOST_WAITING


def client_of(address: str) -> str:
    """Whose address it is."""
    if ":" not in address:
        return address
    ip = ipaddress.IPv6Address(address)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(ip) >> 64 << 64, 64)))


class Numbers:
    """Some numbers, and which client has which. Low ones are used again first, since they are in the journal."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._free = list(numbers)
        heapify(self._free)
        self._clients: dict[int, str] = {}  # the oldest first
        self.counts: Counter[str] = Counter()
        self._with: defaultdict[int, dict[str, None]] = defaultdict(dict)  # clients by their counts
        self._most = 0  # the largest count

    def take(self, client: str) -> int | None:
        """A free one, if there is one."""
        if not self._free:
            return None
        number = heappop(self._free)
        self._clients[number] = client
        self._count(client, 1)
        return number

    def release(self, number: int) -> None:
        """It is free again."""
        self._count(self._clients.pop(number), -1)
        heappush(self._free, number)

    def _count(self, client: str, change: int) -> None:
        """In a time that does not grow with the clients: any of them may come and go often."""
        before = self.counts[client]
        self.counts[client] = now = before + change
        self._with[before].pop(client, None)
        if now:
            self._with[now][client] = None
        else:
            del self.counts[client]
        if not self._with[before]:
            del self._with[before]
        if now > self._most or (before == self._most and before not in self._with):
            self._most = now

    def largest(self) -> tuple[str, int]:
        """The client that has most, and how many."""
        return (next(iter(self._with[self._most])), self._most) if self._most else ("", 0)

    def of(self, client: str) -> list[int]:
        """A client's, the oldest first."""
        return [number for number, owner in self._clients.items() if owner == client]

    def free(self) -> list[int]:
        """Those that nobody has."""
        return sorted(self._free)


class Admission:
    """`most` connections, of which a client may have `most_each` (None: all), and behind them the reserve."""

    def __init__(self, most: int, most_each: int | None = None) -> None:
        self._most = most
        self._most_each = most_each
        self.ordinary = Numbers(range(most))
        self.reserve = Numbers(range(most, most + RESERVE))

    def is_reserved(self, number: int) -> bool:
        """Is it one of the reserve?"""
        return number >= self._most

    def take(self, client: str) -> int | None:
        """A number for a client's connection, if there is room and its share is not used up."""
        return None if self._has_its_share(client) else self.ordinary.take(client)

    def release(self, number: int) -> None:
        """The connection is over."""
        (self.reserve if self.is_reserved(number) else self.ordinary).release(number)

    def who_yields(self, client: str) -> str | None:
        """Who is to give up an idle connection for one of this client; None if nobody has more than it would have."""
        largest, count = self.ordinary.largest()
        fewer = self.ordinary.counts[client] + 1 < count
        return largest if fewer and not self._has_its_share(client) else None

    def _has_its_share(self, client: str) -> bool:
        return self._most_each is not None and self.ordinary.counts[client] >= self._most_each
