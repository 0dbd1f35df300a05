"""Calls of tools in a run: each is made once, whoever makes it, or not at all."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from actorserve.actors.protocol.topics.tools import LONGEST

from ....errors import ApiError
from ....settings import Tools
from ..items import McpItem
from .records import LOST, STALE_S, CallRecord, RunRecords
from .tools import OfferedTool

STALE = "It was begun before this server lost sight of it, and nobody can say whether the tool has done it."
TOO_MANY = "It was not made: this response may make no more calls (max_tool_calls)."
TOO_LONG = f"It was not made: its arguments have more than {LONGEST} bytes."
NO_OBJECT = "It was not made: its arguments are no JSON object."


class ToolCalls:
    """Those of one run. `offered`: the tools that may be called, by their names."""

    def __init__(self, tools: Tools | None, records: RunRecords, most: int) -> None:
        """`tools`: None where no server offers any."""
        self._tools, self._records, self._most = tools, records, most
        self.offered: dict[str, OfferedTool] = {}
        self.count = 0

    @property
    def has_no_more(self) -> bool:
        """Have all been made that may be?"""
        return self.count >= self._most

    async def call(self, item: McpItem) -> CallRecord:
        """Make it, unless a predecessor has."""
        number, self.count = self.count, self.count + 1
        record = self._records.get(CallRecord, number)
        if record is None or not record.done:
            record = await self._make(item, number, record)
            self._records.put(record, number)
        return record

    async def _make(self, item: McpItem, number: int, begun: CallRecord | None) -> CallRecord:
        now = time.monotonic()
        if begun is not None and now - begun.at > STALE_S:
            return CallRecord(begun.life, begun.at, True, error=STALE)
        if (problem := self._problem(item, number)) is not None:
            return CallRecord(0, now, True, error=problem)
        assert self._tools is not None
        life = self._tools.life if begun is None else begun.life
        if begun is None and not self._records.put(CallRecord(life, now), number):
            raise ApiError(500, LOST)
        address = self.offered[item.name].server.address
        key = self._records.name("call", number)
        found = await self._tools.call(key, life, address, item.name, item.text or "{}")
        return CallRecord(life, now, True, found.output, found.error)

    def _problem(self, item: McpItem, number: int) -> str | None:
        """Why a call is not made at all."""
        if number >= self._most:
            return TOO_MANY
        text = item.text or "{}"
        if len(text.encode()) > LONGEST:
            return TOO_LONG
        try:
            msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return NO_OBJECT
        return None
