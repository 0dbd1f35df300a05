"""Work on many lines, or long ones, in a loop that others have their turns in, too."""

from __future__ import annotations

import asyncio

TURN = 4 << 20  # bytes
LEAST = 20 << 10  # that a line counts as, however short


class Turns:
    """`took` is awaited behind each line."""

    def __init__(self) -> None:
        self._left = TURN

    async def took(self, line: bytes) -> None:
        """Others have their turn, where it has been long enough."""
        self._left -= max(len(line), LEAST)
        if self._left <= 0:
            self._left = TURN
            await asyncio.sleep(0)
