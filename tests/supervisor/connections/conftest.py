"""The supervisor's connections, for each test anew."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .server import Server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    server.close()
