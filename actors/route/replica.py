"""One server behind the router: how it is, and what it does for us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ReplicaLost(Exception):
    """It has not answered for too long, or is to be left: what it was asked is to be had elsewhere."""


class Replica:
    """`is_up`: it answers probes, and says that it can serve."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_up = False
        self.draining = False
        self.is_gone = False  # its name stands for others now
        self.state = "not seen yet"
        self.models: frozenset[str] | None = None  # None: not known
        self.told_load = 0  # requests that it has, as it said last
        self.in_flight = 0  # of ours
        self.pending = 0  # bytes of prompts of which nothing has come yet
        self.errors = 0  # answers of 500 in a row
        self.shut_until = 0.0  # by the breaker
        self.heard_at = 0.0  # when the last look began that found it ready
        self.failed_at = -1.0  # when it failed a request last
        self.doubted = asyncio.Event()  # it has: the next look is due now
        self._running: set[asyncio.Task[Any]] = set()
        self._left: set[asyncio.Task[Any]] = set()

    @property
    def load(self) -> int:
        """Requests that it has; those of other routers are told by itself alone."""
        return max(self.in_flight, self.told_load)

    def takes(self, model: str) -> bool:
        """May it be sent a request of this model?"""
        known = not model or self.models is None or model in self.models
        return self.is_up and not self.draining and not self.is_gone and known and time.monotonic() >= self.shut_until

    def fails(self) -> None:
        """It could not be reached, or broke off."""
        self.failed_at = time.monotonic()
        self.doubted.set()

    @property
    def is_proved(self) -> bool:
        """Has it been found ready since it failed?"""
        return self.heard_at > self.failed_at

    def answered(self, status: int, most: int, seconds: float) -> None:
        """The breaker: after `most` answers of 500 in a row it gets nothing for so long."""
        self.errors = self.errors + 1 if status == 500 else 0
        if self.errors >= most:
            self.errors, self.shut_until = 0, time.monotonic() + seconds

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await what asks this replica. ReplicaLost when it is left meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        self.in_flight += 1
        try:
            return await task
        except asyncio.CancelledError:
            if task in self._left:
                raise ReplicaLost(self.address) from None
            raise
        finally:
            self._running.discard(task)
            self._left.discard(task)
            self.in_flight -= 1

    def leave(self) -> int:
        """All that runs there goes on elsewhere; how many that are."""
        count = 0
        for task in list(self._running - self._left):
            self._left.add(task)
            task.cancel()
            count += 1
        return count
