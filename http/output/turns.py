"""Long work of a frontend, in turns of its event loop."""

from __future__ import annotations

import asyncio


class Turns:
    """Others have one each time that so much was done."""

    def __init__(self, most: int) -> None:
        self._most, self._since = most, 0

    async def done(self, amount: int) -> None:
        self._since += amount
        if self._since >= self._most:
            self._since = 0
            await asyncio.sleep(0)
