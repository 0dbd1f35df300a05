"""Long work of a frontend, in turns of its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec


class Turns:
    """Others have one each time that so much was done."""

    def __init__(self, most: int) -> None:
        self._most, self._since = most, 0

    async def done(self, amount: int) -> None:
        self._since += amount
        if self._since >= self._most:
            self._since = 0
            await asyncio.sleep(0)

    async def list_as_json(self, entries: Iterable[tuple[int, object]]) -> msgspec.Raw:
        """A list as JSON, of which each entry comes with how much it is."""
        text = bytearray(b"[")
        for amount, entry in entries:
            text += (b"," if len(text) > 1 else b"") + msgspec.json.encode(entry)
            await self.done(amount)
        text += b"]"
        return msgspec.Raw(text)
