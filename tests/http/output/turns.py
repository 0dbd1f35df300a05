"""Whether others have their turn while something long is done."""

from __future__ import annotations

import asyncio


class OthersTurns:
    """`with OthersTurns() as turns:` counts in `turns.count` how often another task had its turn meanwhile."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> OthersTurns:
        self._other = asyncio.create_task(self._go_on())
        return self

    def __exit__(self, *error: object) -> None:
        self._other.cancel()

    async def _go_on(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)
