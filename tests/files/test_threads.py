"""Work in a thread, also where nobody waits for it any more."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from actorserve.actors.files.threads import on_disk


async def test_what_it_fails_of_is_told() -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        await on_disk(fail)


@pytest.mark.parametrize("times", [1, 2])
async def test_what_fails_behind_a_cancellation_is_no_failure_of_the_loop(times: int) -> None:
    began, go_on, failures = asyncio.Event(), threading.Event(), list[dict[str, Any]]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, about: failures.append(about))
    ended = asyncio.Event()

    def fail() -> None:
        loop.call_soon_threadsafe(began.set)
        go_on.wait()
        loop.call_soon_threadsafe(ended.set)
        raise OSError(28, "No space left on device")

    waiting = asyncio.create_task(on_disk(fail))
    await began.wait()
    for _ in range(times):
        waiting.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await ended.wait()
    await loop.shutdown_default_executor()
    for _ in range(3):  # turns in which the loop is told of the thread's end
        await asyncio.sleep(0)
    gc.collect()
    assert not failures
