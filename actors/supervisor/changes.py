"""Waiting for what the supervisor sees, in operations that take a while: restarts, scaling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class OperationStopped(Exception):
    """An operation on actors goes no further; the message says why."""


def raise_mistake(task: asyncio.Task[None]) -> None:
    """What an operation does not expect is the supervisor's own mistake."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


class Changes:
    """Whoever waits looks again whenever something has changed."""

    def __init__(self, ending: asyncio.Event) -> None:
        """`ending`: the server ends."""
        self._ending = ending
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """An actor is up or dead, or the server ends."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, reached: Callable[[], bool], seconds: float | None) -> bool:
        """Wait for it; False if it has not come in time. OperationStopped if the server ends."""
        try:
            async with asyncio.timeout(seconds):
                while not reached():
                    if self._ending.is_set():
                        raise OperationStopped("the server ends")
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
