"""How much memory lines of batches have."""

from __future__ import annotations

import asyncio

from actorserve.actors.batcher.memory import LineMemory


async def test_lines_wait_for_memory_but_for_a_batchs_first() -> None:
    memory = LineMemory(100)
    one, other = memory.share(), memory.share()
    await one.take(80)
    await other.take(50)  # it has none
    waiting = asyncio.create_task(other.take(50))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    one.give_back(80)
    await waiting
    assert memory.left == 0
    other.give_back(50)
    other.give_back(50)
    assert memory.left == 100


async def test_who_has_none_any_more_waits_no_longer() -> None:
    memory = LineMemory(100)
    one, other = memory.share(), memory.share()
    await one.take(100)
    await other.take(10)
    waiting = asyncio.create_task(other.take(20))
    await asyncio.sleep(0)
    assert not waiting.done()
    other.give_back(10)
    await waiting
