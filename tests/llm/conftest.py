"""One LLM object with the demo model, for all tests that do not harm it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorserve import LLM

MANY_BYTES = 600 << 20  # of shared memory, of which an LLM has 260 MB


@pytest.fixture(autouse=True)
def shared_memory() -> Iterator[None]:
    """What an LLM of this process had is there until Python's collector gets to it, and not each machine has more."""
    yield
    if mapped_bytes() > MANY_BYTES:
        gc.collect()


def mapped_bytes() -> int:
    """Of shared memory in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "/dev/shm/actorserve-" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(max_num_seqs=8, threads=1, max_logprobs=64) as made:
        yield made
