"""One real server for all tests here, and others with fake actors, which start at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server import Server

from .commands import KEY

FAKE = (sys.executable, str(Path(__file__).resolve().parent.parent / "supervisor" / "fake_launch.py"))
MODEL = {"architectures": ["LlamaForCausalLM"], "vocab_size": 32, "max_position_embeddings": 64}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Its actors may be stopped for a while."""
    with Server("--hang-timeout", "300", "--step-timeout", "300", "--api-key", KEY) as made:
        yield made


@pytest.fixture
def another(tmp_path: Path) -> Callable[[], Server]:
    """Starts one with fake actors."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    small = ("--max-num-seqs", "2", "--max-num-queued-reqs", "2")
    return lambda: Server(str(tmp_path), *small, command=FAKE)
