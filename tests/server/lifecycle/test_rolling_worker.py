"""`actorserve restart worker` while a stream runs."""

from __future__ import annotations

import asyncio

from tests.support.client import http_session
from tests.support.rolling import restart, stream
from tests.support.server import Server

SCRIPTED = ("--worker", "scripted", "--max-model-len", "2048")


def test_a_worker_is_replaced_alone() -> None:
    """The scheduler has the next one go on with what runs."""

    async def restart_under_a_stream(server: Server) -> None:
        parts: list[int] = []
        async with http_session(server) as session:
            running = asyncio.create_task(stream(session, 1, 2000, lambda: parts.append(1)))
            for number in range(2):
                parts.clear()
                while not parts and not running.done():
                    await asyncio.sleep(0.001)  # the stream runs; what is waited for is its next text
                assert not running.done(), await running
                if not number:
                    await asyncio.to_thread(restart, server, "worker")
            running.cancel()

    with Server(*SCRIPTED, "--scripted-step-ms", "30", "--max-restarts", "1") as server:
        before = server.actors()
        asyncio.run(restart_under_a_stream(server))
        changed = {name for name, pid in server.actors().items() if pid != before[name]}
        assert changed == {"worker"}
