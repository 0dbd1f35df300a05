"""The app with a folder for files, and OpenAI's own client before it, or Anthropic's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from actorserve.actors.files.batches import Batch, BatchStore
from actorserve.http.settings import FileSettings
from tests.http.serving import Served, serving

SECRET = b"s" * 32
LINES = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n'


@asynccontextmanager
async def files_served(folder: Path, limit: int = 1 << 20, **settings: Any) -> AsyncIterator[Served]:
    async with serving(files=FileSettings(str(folder), limit, SECRET), **settings) as served:
        yield served


@asynccontextmanager
async def client_of(served: Served, key: str = "-") -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key=key, max_retries=0) as client:
        yield client


@asynccontextmanager
async def anthropic_of(served: Served, key: str = "-") -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=f"http://127.0.0.1:{served.port}", api_key=key, max_retries=0) as client:
        yield client


def form(*parts: tuple[str, bytes], end: bool = True) -> bytes:
    """A form of these parts: what stands behind the name of each, and what is in it."""
    said = [
        b"--x\r\nContent-Disposition: form-data; name=%s\r\n\r\n%s\r\n" % (name.encode(), data) for name, data in parts
    ]
    return b"".join(said) + (b"--x--\r\n" if end else b"")


def delete_before_cancelling(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another request did."""
    cancel = BatchStore.cancel

    def late(store: BatchStore, batch_id: str) -> Batch | None:
        store.delete(batch_id)
        return cancel(store, batch_id)

    monkeypatch.setattr(BatchStore, "cancel", late)
