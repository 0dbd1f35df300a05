"""A folder for files behind the app, and the clients of OpenAI and Anthropic before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.http.files.scene import anthropic_of, client_of, files_served
from tests.http.serving import Served


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Served]:
    async with files_served(tmp_path) as served:
        yield served


@pytest_asyncio.fixture
async def client(running: Served) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(running) as made:
        yield made


@pytest_asyncio.fixture
async def anthropic(running: Served) -> AsyncIterator[AsyncAnthropic]:
    async with anthropic_of(running) as made:
        yield made
