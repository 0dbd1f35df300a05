"""Fixtures that several folders of tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from tests.server import Server

MANY_FILES = 300  # of the 1,024 that some machines allow


def pytest_runtest_logfinish() -> None:
    """Rings that a test has made hold descriptors until Python's collector gets to them."""
    if len(os.listdir("/proc/self/fd")) > MANY_FILES:
        gc.collect()


@pytest.fixture(scope="session")
def demo_server() -> Iterator[Server]:
    """A real server with the demo model, for all tests that do not disturb it."""
    with Server() as server:
        yield server
