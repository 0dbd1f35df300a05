"""One operation on actors, a restart or another, as those see it who ask how it goes."""

from __future__ import annotations

import asyncio
import contextlib

from ..protocol.sockets.control_wire import OperationNews

POLL_S = 2.0  # how long who asks for news waits for them


class OperationProgress:
    """What it is, and what it has come to."""

    def __init__(self, number: int, what: str, wanted: int) -> None:
        self.number = number
        self.what = what
        self.wanted = wanted  # actors, or engines
        self.lines: list[str] = []
        self.failed = ""
        self.done = False
        self._news = asyncio.Event()

    def say(self, line: str) -> None:
        """Something was reached."""
        self.lines.append(line)
        self._tell()

    def end(self, failed: str) -> None:
        """All is over; `failed` says why, if not all is replaced."""
        self.failed, self.done = failed, True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def progress(self, seen: int) -> OperationNews:
        """What has happened beyond the first `seen` lines; waits a while if that is nothing."""
        if len(self.lines) <= seen and not self.done:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._news.wait()
        return OperationNews(self.lines[seen:], self.done, self.failed)
