"""Fixtures that several folders of tests share."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from tests.server import Server


def pytest_configure() -> None:
    """Rings that tests have made are freed when Python gets to it: many descriptors are open meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.fixture(scope="session")
def demo_server() -> Iterator[Server]:
    """A real server with the demo model, for all tests that do not disturb it."""
    with Server() as server:
        yield server
