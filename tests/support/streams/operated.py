"""Requests in the background of a server that operators pause, put to sleep or give other weights."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.support.server import Server

PATIENCE_S = 300.0
ADMIN = {"X-Api-Key": "lock-and-key"}
OPTIONS = (
    *("--threads", "1", "--admin-api-key", "lock-and-key", "--hang-timeout", "30", "--max-restarts", "1000"),
    *("--frontends", "2"),
)
LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "seed": 7}
SHORT: dict[str, Any] = {"prompt": "The fox", "max_tokens": 5, "ignore_eos": True}
numbers = itertools.count()


@asynccontextmanager
async def session_of(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    timeout, connector = aiohttp.ClientTimeout(total=PATIENCE_S), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.base_url, timeout=timeout, connector=connector) as session:
        yield session


async def ask(session: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> dict[str, Any]:
    async with session.request(method, path, headers=ADMIN, json=body) as answer:
        return {"status_code": answer.status, **await answer.json()}


async def complete(session: aiohttp.ClientSession, **body: Any) -> dict[str, Any]:
    async with session.post("/v1/completions", json=body) as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == 200, found
        return found


class Stream:
    """A streamed completion, read in the background."""

    def __init__(self, session: aiohttp.ClientSession, name: str = "", **body: Any) -> None:
        self.text = self.finish_reason = self.id = ""
        self.name = name or f"pause-{next(numbers)}"
        self.more = asyncio.Event()
        self.task = asyncio.create_task(self._read(session, body | {"stream": True}))

    async def _read(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
        async with session.post("/v1/completions", json=body, headers={"X-Request-Id": self.name}) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    assert "error" not in chunk, chunk
                    choice = chunk["choices"][0]
                    self.id, self.text = chunk["id"], self.text + choice["text"]
                    self.finish_reason = choice["finish_reason"] or self.finish_reason
                    self.more.set()

    async def moved(self) -> None:
        """Some text has come since the last time."""
        await asyncio.wait_for(self.more.wait(), PATIENCE_S)
        self.more.clear()


async def expected(session: aiohttp.ClientSession) -> str:
    return str((await complete(session, **LONG))["choices"][0]["text"])
