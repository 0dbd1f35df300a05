"""One LLM object with the demo model, for all tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorserve import LLM


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(max_num_seqs=8, threads=1) as made:
        yield made
