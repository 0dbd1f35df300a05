"""The memory that lines of batches may have while they are asked, or wait for that."""

from __future__ import annotations

import asyncio


class LineMemory:
    """So many bytes for all batches."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.freed = asyncio.Event()

    def share(self) -> Share:
        """That of one batch, which goes on whatever the others have: its first line may always come."""
        return Share(self)


class Share:
    """What one batch has of it."""

    def __init__(self, memory: LineMemory) -> None:
        self._memory = memory
        self._held = 0

    async def take(self, size: int) -> None:
        """Once there is room."""
        while self._held and size > self._memory.left:
            self._memory.freed.clear()
            await self._memory.freed.wait()
        self._held += size
        self._memory.left -= size

    def give_back(self, size: int) -> None:
        """The line is answered."""
        self._held -= size
        self._memory.left += size
        self._memory.freed.set()
