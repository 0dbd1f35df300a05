"""HTTP to MCP servers that requests name: only to hosts that are allowed, and to addresses that were looked at.

Each host is resolved, each of its addresses looked at, and the connection made to that very address: who answers
otherwise at a second question is not asked. The library follows redirects within one origin alone. What an answer may
have of bytes is bounded for all servers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx2

from ..options.config import Config
from ..protocol.topics.tools import LONGEST
from ..runtime.addresses import is_below, is_public
from .refused import Refused

MOST_BYTES = 16 * LONGEST  # of one answer that ends
STREAM = "text/event-stream"  # one that may go on; the library bounds each event


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Where requests go. `is_named`: the address was named by a client."""

    def __init__(self, config: Config, is_named: bool) -> None:
        self._config, self._is_named = config, is_named
        self._below = httpx2.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._is_named:
            request = await self._to_address(request)
        response = await self._below.handle_async_request(request)
        if not response.headers.get("content-type", "").startswith(STREAM):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream)
        return response

    async def aclose(self) -> None:
        await self._below.aclose()

    async def _to_address(self, request: httpx2.Request) -> httpx2.Request:
        url, host = request.url, request.url.host
        if not is_below(host, self._config.allowed_tool_domains):
            raise Refused(f"{host} is none of --allowed-tool-domains")
        port = url.port or (443 if url.scheme == "https" else 80)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(address[0]) for *_, address in found]
        if not self._config.allow_private_tools:
            addresses = [address for address in addresses if is_public(address)]
        if not addresses:
            raise Refused(f"{host} has no public address (--allow-private-tools takes others)")
        request.url = url.copy_with(host=addresses[0])
        request.extensions = {**request.extensions, "sni_hostname": host}
        return request


class _Bounded(httpx2.AsyncByteStream):
    """A body that ends with an error where it has more than it may."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_BYTES
        async for part in self._stream:
            left -= len(part)
            if left < 0:
                raise Refused(f"an answer of it has more than {MOST_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def make_client(config: Config, headers: dict[str, str], is_named: bool) -> httpx2.AsyncClient:
    """For one server."""
    timeout = httpx2.Timeout(config.tool_timeout, read=None)  # each call has a deadline of its own
    return httpx2.AsyncClient(transport=GuardedTransport(config, is_named), headers=headers, timeout=timeout)
