"""`--deterministic` in a real server: a token's logprob is the same number alone and in any crowd, whatever happens.

`tools/chaos/same_bits` compares 1,000 prompts.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from actorserve.actors.model.memory.kv import KV_TYPES
from tests.support.client import http_session
from tests.support.compiler import Compiler, need_compiler
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


@pytest.mark.parametrize("works", [True, False])
def test_what_computes_stays_whatever_becomes_of_the_compiler(works: bool, tmp_path: Path) -> None:
    """For the first life it works, or not, and for the second one it is the other way round."""
    need_compiler()
    compiler = Compiler(tmp_path)
    if not works:
        compiler.fails()
    with Server(*OPTIONS, "2", env=compiler.environment) as server:
        expected = asyncio.run(alone(server, 4))
        (compiler.fails if works else compiler.works)()
        server.replace("worker")
        assert differing(asyncio.run(alone(server, 4)), expected) == []
        said = [line.partition("kernels: ")[2] for line in server.output.splitlines() if "kernels: " in line]
    if works:
        assert [line.partition(" ")[0] for line in said] == ["native", "native"]
    else:
        assert said[1] == "torch, as the workers before had"
        assert re.fullmatch("torch: .* fails: error: no more; until the server is started again.*", said[0])


@PATIENCE
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_a_group_of_workers(size: int) -> None:
    """Four add up their parts in an order that does not depend on where in a batch a row stands."""
    with Server(*OPTIONS, "1", "-tp", str(size), "--max-num-batched-tokens", "96") as server:
        expected = asyncio.run(alone(server, 60))
        assert differing(asyncio.run(in_crowds(server, 60, 1)), expected) == []
        assert differing(asyncio.run(in_crowds(server, 60, 2)), expected) == []
