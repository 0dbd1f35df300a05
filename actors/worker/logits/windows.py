"""Penalties that look back on a row's last tokens alone, for who counts them on a device.

The device adds the token that a row draws to its counts by itself. Which one is no longer among the last ones the host
says when it starts a step: it knows that before the tokens of the steps in flight, unless these are as many as the
penalties look back on.
"""

from __future__ import annotations

from collections import deque

NONE = -1  # no token


class PenaltyWindow:
    """Of one row."""

    def __init__(self, size: int, tokens: list[int]) -> None:
        """It looks back on `size` tokens; `tokens`: prompt and answer so far."""
        self._last = deque(tokens[-size:], size)
        self._started = 0  # draws whose tokens are not known yet

    @property
    def tokens(self) -> list[int]:
        """That are looked back on, as far as they are known."""
        return [*self._last]

    @property
    def is_known(self) -> bool:
        """Is the token known that `start` tells?"""
        return self._started < self._size

    def start(self) -> int:
        """One more token is about to be drawn: which one is not looked back on behind it; NONE: all are."""
        at = len(self._last) + self._started - self._size
        self._started += 1
        return self._last[at] if at >= 0 else NONE

    def add(self, token: int) -> None:
        """What was drawn, in the order of `start`."""
        self._started -= 1
        self._last.append(token)

    @property
    def _size(self) -> int:
        size = self._last.maxlen
        assert size is not None
        return size
