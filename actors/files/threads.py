"""Work on a disk, which may be slow, beside an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def on_disk(work: Callable[..., T], *given: object) -> T:
    """In a thread. It has come to its end here, also where nobody waits for it any more."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *given))
    task.add_done_callback(_seen)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _seen(task: asyncio.Task[T]) -> None:
    """What it fails of is told to who waits; where nobody does any more, that is no failure of the loop's."""
    if not task.cancelled():
        task.exception()
