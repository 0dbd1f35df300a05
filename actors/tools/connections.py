"""Connections to MCP servers: made when first asked for, kept while they are used, made anew behind a failure.

Each is held by a task of its own, in which it is opened and closed. A server's process of --tool-server ends with its
connection, and, as it reads to the end of its pipe, with this actor, however that dies.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from typing import Any

import mcp
import msgspec
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from ..options.config import Config
from ..options.objects.tool_servers import ToolServer
from ..protocol.topics.tools import LONGEST, CallTool, ServerAddress, Tool, ToolCalled
from ..runtime.loop import raise_error
from .demo import make_demo
from .guarded import make_client
from .refused import Refused, ToolTrouble

log = logging.getLogger("tools")
logging.getLogger("mcp").setLevel(logging.ERROR)
CONNECT_S = 20.0
IDLE_S = 120.0  # of a connection
MOST_OPEN = 128
MOST_TOOLS = 512  # of one server
PAGES = 32  # of a list of tools
LONGEST_ERROR = 500  # characters
Key = tuple[str, str, tuple[tuple[str, str], ...]]


class ConnectionLost(ToolTrouble):
    """It has ended, perhaps before anything was asked."""


class Connection:
    """To one server, with one set of headers."""

    def __init__(self, server: ToolServer, config: Config, is_named: bool) -> None:
        """`is_named`: by a request, and not by the options."""
        self.used_at = time.monotonic()
        self.users = 0
        self._server, self._config, self._is_named = server, config, is_named
        loop = asyncio.get_running_loop()
        self._client: asyncio.Future[mcp.Client] = loop.create_future()
        self._unwanted = asyncio.Event()
        self.task = loop.create_task(self._hold())
        self.task.add_done_callback(raise_error)

    @property
    def is_broken(self) -> bool:
        return self.task.done() or self._unwanted.is_set()

    async def client(self) -> mcp.Client:
        """Once it is there."""
        return await asyncio.shield(self._client)

    def close(self) -> None:
        self._unwanted.set()

    async def _hold(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(CONNECT_S):
                    target = await self._target(stack)
                    client = await stack.enter_async_context(mcp.Client(target, cache=None))
                if not self._client.done():
                    self._client.set_result(client)
                await self._unwanted.wait()
        except Exception as error:  # of the library, its transports and the server: for whoever waits
            if not self._client.done():
                self._client.set_exception(ToolTrouble(f"it cannot be reached: {_shown(error)}"))
                self._client.exception()  # looked at: nobody may be waiting
            else:
                log.info("a connection to an MCP server has ended: %s", _shown(error))

    async def _target(self, stack: AsyncExitStack) -> Any:
        server = self._server
        if server.demo:
            return make_demo()
        if server.command:
            return StdioServerParameters(command=server.command, args=server.args, env=server.env, cwd=server.cwd)
        client = await stack.enter_async_context(make_client(self._config, server.headers, self._is_named))
        return streamable_http_client(server.url, http_client=client, max_sse_event_size=4 * LONGEST)


class Connections:
    """All that are open."""

    def __init__(self, config: Config, servers: dict[str, ToolServer]) -> None:
        self._config, self._servers = config, servers
        self._open: dict[Key, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ready(self) -> None:
        """Servers of the options are connected to before they are asked."""
        for label in self._servers:
            self._connection(ServerAddress(label))

    async def tools(self, address: ServerAddress) -> list[Tool]:
        """All that the server has; ToolTrouble where they cannot be had."""
        before = self._open.get(_key(address))
        connection = self._connection(address)
        try:
            return await self._listed(connection, address.label)
        except ConnectionLost:
            if connection is not before:
                raise
            return await self._listed(self._connection(address), address.label)  # its process ended meanwhile

    async def _listed(self, connection: Connection, label: str) -> list[Tool]:
        found: list[Any] = []

        async def read(client: mcp.Client) -> None:
            cursor = None
            for _ in range(PAGES):
                page = await client.list_tools(cursor=cursor)
                found.extend(page.tools)
                cursor = page.next_cursor
                if cursor is None or len(found) > MOST_TOOLS:
                    return

        await self._use(connection, label, read, CONNECT_S)
        tools = [_tool(one) for one in found]
        if len(tools) > MOST_TOOLS or len(msgspec.json.encode(tools)) > LONGEST:
            raise ToolTrouble(f"The MCP server {label!r} has more than {MOST_TOOLS} tools, or {LONGEST} bytes.")
        return tools

    async def call(self, message: CallTool) -> ToolCalled:
        """What the tool says; ToolTrouble where it has said nothing."""
        results: list[Any] = []
        arguments = msgspec.json.decode(message.arguments, type=dict[str, Any])

        async def call(client: mcp.Client) -> None:
            results.append(await client.call_tool(message.name, arguments))

        timeout = self._config.tool_timeout
        await self._use(self._connection(message.server), message.server.label, call, timeout)
        text = _text_of(results[0])
        return ToolCalled(message.call, "", text or "It failed.") if results[0].is_error else ToolCalled(0, text)

    async def _use(self, connection: Connection, label: str, work: Any, limit: float) -> None:
        """Do it with its client. A connection on which anything went wrong is not used again."""
        connection.users += 1
        try:
            async with asyncio.timeout(CONNECT_S + limit):
                client = await connection.client()
                async with asyncio.timeout(limit):
                    await work(client)
        except ToolTrouble as error:
            connection.close()
            raise ToolTrouble(f"The MCP server {label!r}: {error}", error.status) from None
        except TimeoutError:
            connection.close()
            raise ToolTrouble(f"The MCP server {label!r} has not answered within {limit:g} s.") from None
        except mcp.MCPError as error:
            if error.code == CONNECTION_CLOSED:
                connection.close()
                raise ConnectionLost(f"The connection to the MCP server {label!r} has ended.") from None
            raise ToolTrouble(f"The MCP server {label!r} says: {_shown(error)}") from None
        except Exception as error:  # of the library, its transports and the server
            connection.close()
            raise ToolTrouble(f"The MCP server {label!r} cannot be asked: {_shown(error)}") from None
        finally:
            connection.users -= 1
            connection.used_at = time.monotonic()

    def _connection(self, address: ServerAddress) -> Connection:
        key = _key(address)
        found = self._open.get(key)
        if found is not None and not found.is_broken:
            return found
        if len(self._open) >= MOST_OPEN:
            self.let_go(all_idle=True)
        if len(self._open) >= MOST_OPEN:
            raise ToolTrouble(f"There are connections to {MOST_OPEN} MCP servers, and all are used.", 503)
        server = self._servers.get(address.label)
        if address.url:
            server = ToolServer(url=address.url, headers=address.headers)
        if server is None:
            raise ToolTrouble(f"There is no MCP server {address.label!r} here.")
        made = self._open[key] = Connection(server, self._config, bool(address.url))
        return made

    def let_go(self, all_idle: bool = False) -> None:
        """Close what nobody has used for a while, and forget what is closed."""
        limit = time.monotonic() - (0 if all_idle else IDLE_S)
        for key, one in list(self._open.items()):
            of_request = bool(key[1])
            if not one.is_broken and of_request and not one.users and one.used_at <= limit:
                one.close()
            if one.is_broken and not one.users:
                del self._open[key]

    async def close(self) -> None:
        """All of them."""
        for one in self._open.values():
            one.close()
        if self._open:
            await asyncio.wait([one.task for one in self._open.values()], timeout=5)


def _key(address: ServerAddress) -> Key:
    return address.label, address.url, tuple(sorted(address.headers.items()))


def _tool(found: Any) -> Tool:
    annotations = found.annotations.model_dump(exclude_none=True, by_alias=True) if found.annotations else None
    return Tool(found.name, found.input_schema, found.description, annotations)


def _text_of(result: Any) -> str:
    """What the model and the client are told of it; what is no text is named."""
    parts = []
    for part in result.content:
        if part.type == "text":
            parts.append(part.text)
        elif part.type == "resource" and hasattr(part.resource, "text"):
            parts.append(part.resource.text)
        else:
            parts.append(f"[{part.type}, which is not passed on]")
    if not parts and result.structured_content is not None:
        parts.append(msgspec.json.encode(result.structured_content).decode())
    text = "\n".join(parts)
    if len(text.encode(errors="replace")) > LONGEST:
        raise ToolTrouble(f"its output has more than {LONGEST} bytes.")
    return text


def _shown(error: BaseException) -> str:
    """What went wrong, in one line: inside a group, the first of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, Refused) else text[:LONGEST_ERROR]
