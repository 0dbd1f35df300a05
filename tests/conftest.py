"""Fixtures that several folders of tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server import Server


@pytest.fixture(scope="session")
def demo_server() -> Iterator[Server]:
    """A real server with the demo model, for all tests that do not disturb it."""
    with Server() as server:
        yield server
