"""What `tools/chaos/faults --sleeps` does beside the faults: the server sleeps and is woken, again and again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import aiohttp

KEY = "chaos"
OPTIONS = ["--admin-api-key", KEY]
LONGEST_S = 120.0


async def sleep_and_wake(
    session: aiohttp.ClientSession, done: asyncio.Event, rng: random.Random, counts: Counter[str]
) -> None:
    """Until it is done; requests go on behind each sleep. What is not answered as it should be raises."""
    while not done.is_set():
        level, mode = rng.choice([1, 2]), rng.choice(["keep", "wait"])
        await _ask(session, f"/sleep?level={level}&mode={mode}")
        await asyncio.sleep(rng.expovariate(5.0))  # when it is woken is what is at random
        await _ask(session, "/wake_up")
        counts["sleeps"] += 1
        await asyncio.sleep(rng.expovariate(2.0))


async def _ask(session: aiohttp.ClientSession, path: str) -> None:
    timeout = aiohttp.ClientTimeout(total=LONGEST_S)
    async with session.post(path, headers={"X-Api-Key": KEY}, timeout=timeout) as answer:
        if answer.status != 200:
            raise SystemExit(f"POST {path}: {answer.status} {await answer.text()}")
