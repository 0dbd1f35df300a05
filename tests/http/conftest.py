"""A server for each test that wants one, on uvloop as in a frontend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
import uvloop

from tests.http.serving import Served, serving


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as running:
        yield running
