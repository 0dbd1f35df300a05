"""What the supervisor knows of one frontend's connections; the pool says what is to be done with them."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

RECOVERS_S = 1.0  # after a connection that it could not take a frontend gets no new ones, if another can take them
FORGIVEN_S = 5.0  # after the last of them its want is over
NEVER = float("-inf")


class Channel:
    """One frontend over all its lives: its socket of today and the connections that are its own."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.numbers: set[int] = set()
        self.unsent: deque[tuple[int, int]] = deque()
        self.again: asyncio.TimerHandle | None = None  # a try that is to come, when the kernel had no means
        self.up = False  # new ones may be given to it
        self.wants_since = self.wanted_at = NEVER  # it gave connections back for want of descriptors, first and last

    def is_in_want(self, now: float) -> bool:
        """It could not take connections a moment ago."""
        return now - self.wanted_at < RECOVERS_S

    def forget_want(self) -> None:
        """A new life begins without."""
        self.wants_since = self.wanted_at = NEVER

    def cannot_take(self, now: float) -> None:
        """It gave one back."""
        if now - self.wanted_at > FORGIVEN_S:
            self.wants_since = now
        self.wanted_at = now
