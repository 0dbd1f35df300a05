"""A session over HTTP/2 with what clients of faults use of aiohttp's: many requests share a connection."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import httpx2 as httpx


class Http2Answer:
    """As aiohttp's, as far as it is looked at."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer
        self.status = answer.status_code

    async def text(self) -> str:
        await self._answer.aread()
        return self._answer.text

    @property
    def content(self) -> AsyncIterator[bytes]:
        """Its lines."""
        return self._lines()

    async def _lines(self) -> AsyncIterator[bytes]:
        async for line in self._answer.aiter_lines():
            yield line.encode()


class Http2Session:
    """Its errors are aiohttp's: a connection that is lost is one."""

    def __init__(self, base_url: str, wait_s: float) -> None:
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(http1=False, http2=True, base_url=base_url, timeout=wait_s, limits=limits)

    @contextlib.asynccontextmanager
    async def post(self, path: str, **sent: Any) -> AsyncIterator[Http2Answer]:
        try:
            async with self._client.stream("POST", path, **sent) as answer:
                yield Http2Answer(answer)
        except httpx.TimeoutException as error:
            raise TimeoutError(str(error)) from error
        except httpx.TransportError as error:
            raise aiohttp.ClientConnectionError(f"{type(error).__name__} {error}") from error

    async def __aenter__(self) -> Http2Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
