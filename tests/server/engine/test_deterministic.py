"""`--deterministic` in a real server: a token's logprob is the same number alone and in any crowd, whatever happens.

`tools/chaos/same_bits` compares 1,000 prompts.
"""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from actorserve.actors.model.memory.kv import KV_TYPES
from tests.support.client import http_session
from tests.support.server import Server
from tests.support.streams.crowds import Answer, alone, ask, differing, in_crowds

OPTIONS = ("--deterministic", "--no-enable-log-requests", "--threads")
PATIENCE = pytest.mark.timeout(3600)  # thousands of answers, on a machine that may be busy


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_the_same_in_16_bits(dtype: str) -> None:
    """A small part of what `tools/chaos/same_bits` asks."""
    with Server(*OPTIONS, "1", "--dtype", dtype, "--max-num-batched-tokens", "96") as server:
        expected = asyncio.run(alone(server, 12))
        assert differing(asyncio.run(in_crowds(server, 12, 1)), expected) == []


KEPT = [
    "auto",
    *(pytest.param(name, marks=pytest.mark.slow) for name in KV_TYPES if name != "float32"),
]


@pytest.mark.parametrize("kept", KEPT)
def test_alone_and_in_a_crowd_and_after_a_death(kept: str) -> None:
    """The worker's, and the scheduler's, with keys and values of each type."""
    with Server(*OPTIONS, "2", "--max-num-batched-tokens", "96", "--kv-cache-dtype", kept) as server:
        expected = asyncio.run(alone(server, 24))
        assert differing(asyncio.run(in_crowds(server, 24, 1)), expected) == []

        async def die_in_the_middle(who: str) -> list[Answer]:
            async with http_session(server) as session:
                tasks = [asyncio.create_task(ask(session, number)) for number in range(24)]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                os.kill(server.pids()[who], signal.SIGKILL)
                return await asyncio.gather(*tasks)

        for who in ("worker", "scheduler"):
            found = differing(asyncio.run(die_in_the_middle(who)), expected)
            assert found == [], f"behind the death of the {who}: {server.output}"  # which says what it computes with


@PATIENCE
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_a_group_of_workers(size: int) -> None:
    """Four add up their parts in an order that does not depend on where in a batch a row stands."""
    with Server(*OPTIONS, "1", "-tp", str(size), "--max-num-batched-tokens", "96") as server:
        expected = asyncio.run(alone(server, 60))
        assert differing(asyncio.run(in_crowds(server, 60, 1)), expected) == []
        assert differing(asyncio.run(in_crowds(server, 60, 2)), expected) == []
