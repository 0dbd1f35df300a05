"""One real server for all tests here, and others with fake actors, which start at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.models.checkpoints import write_shape
from tests.support.server import Server

from .commands import KEY

FAKE = str(Path(__file__).resolve().parent.parent / "supervisor" / "tree" / "fake_launch.py")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Its actors may be stopped for a while."""
    with Server("--hang-timeout", "300", "--step-timeout", "300", "--api-key", KEY) as made:
        yield made


@pytest.fixture
def another(tmp_path: Path) -> Callable[[], Server]:
    """Starts one with fake actors."""
    model = write_shape(tmp_path)
    small = ("--max-num-seqs", "2", "--max-num-queued-reqs", "2")
    return lambda: Server(*model, *small, program=FAKE)
