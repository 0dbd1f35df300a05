"""What the tools actor asks of MCP servers: over HTTP by addresses that requests name, guarded; with bounds and
deadlines. The demo's arithmetic.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.options.config import Config, make_config
from actorserve.actors.options.objects.tool_servers import tool_servers
from actorserve.actors.protocol.topics.tools import LONGEST, CallTool, ServerAddress, ToolCalled
from actorserve.actors.tools.refused import ToolTrouble
from tests.support.plugins import mcp_server

HERE = {"allowed_tool_domains": ["127.0.0.1", "localhost"], "allow_private_tools": True}


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Of an MCP server in this process."""
    import uvicorn  # it and mcp are imported by tests alone: each process of a run collects this file

    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = mcp_server.make(tmp_path).streamable_http_app()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        task = asyncio.create_task(server.serve([listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        (tmp_path / "open").touch()
        server.should_exit = True
        await task


def call(server: ServerAddress, name: str, arguments: str) -> CallTool:
    return CallTool(1, 1, b"", server, name, arguments)


async def ask(config: Config, server: ServerAddress, name: str, arguments: str = '{"text": "x"}') -> ToolCalled:
    from actorserve.actors.tools.connections import Connections

    connections = Connections(config, tool_servers(config))
    try:
        await connections.tools(server)
        return await connections.call(call(server, name, arguments))
    finally:
        await connections.close()


async def test_a_server_that_a_request_names(url: str) -> None:
    config = make_config({**HERE, "tool_timeout": 0.5})
    server = ServerAddress("x", url)
    assert (await ask(config, server, "say")).output == "x"
    assert "fail" in (await ask(config, server, "fail")).error
    with pytest.raises(ToolTrouble, match=r"has not answered within 0\.5 s"):
        await ask(config, server, "wait")
    with pytest.raises(ToolTrouble, match="more than"):
        await ask(config, server, "say", f'{{"text": "{"x" * (LONGEST + 1)}"}}')


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allowed_tool_domains": ["example.com"], "allow_private_tools": True}, "--allowed-tool-domains"),
        ({"allowed_tool_domains": ["127.0.0.1"]}, "--allow-private-tools"),
    ],
)
async def test_where_it_may_not_go(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolTrouble, match=words):
        await ask(make_config(options), ServerAddress("x", url), "say")


async def test_nobody_is_there() -> None:
    config = make_config({**HERE, "tool_server": ["demo"]})
    with pytest.raises(ToolTrouble, match="cannot be reached"):
        await ask(config, ServerAddress("x", "http://127.0.0.1:9/mcp"), "say")
    assert (await ask(config, ServerAddress("demo"), "calculate", '{"expression": "2*(3+4)"}')).output == "14"
    assert "2026" <= (await ask(config, ServerAddress("demo"), "current_time", "{}")).output[:4]
    assert "timezone" in (await ask(config, ServerAddress("demo"), "current_time", '{"timezone": "No"}')).error


async def test_a_server_that_has_ended_is_connected_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are asked for once more, of a connection that was there before; a call may have been made."""
    import mcp
    from mcp_types import CONNECTION_CLOSED

    from actorserve.actors.tools import connections as module

    made: list[Any] = []

    class Ending:
        """Whose process is alive or not."""

        def __init__(self, *given: Any) -> None:
            self.lives, self.is_broken, self.users, self.used_at = True, False, 0, 0.0
            made.append(self)

        def close(self) -> None:
            self.is_broken = True

        async def client(self) -> Any:
            return self

        async def list_tools(self, cursor: str | None) -> Any:
            if not self.lives:
                raise mcp.MCPError(code=CONNECTION_CLOSED, message="Connection closed")
            return SimpleNamespace(tools=[], next_cursor=None)

        async def call_tool(self, name: str, arguments: Any) -> Any:
            return await self.list_tools(None)

    monkeypatch.setattr(module, "Connection", Ending)
    config = make_config({"tool_server": ["demo"]})
    connections, demo = module.Connections(config, tool_servers(config)), ServerAddress("demo")
    for count in (1, 2):
        assert await connections.tools(demo) == [] and len(made) == count
        made[-1].lives = False
    assert await connections.tools(demo) == [] and len(made) == 3
    made[-1].lives = False
    with pytest.raises(ToolTrouble, match="connection to the MCP server 'demo' has ended"):
        await connections.call(call(demo, "calculate", "{}"))
    assert len(made) == 3 and await connections.tools(demo) == [] and len(made) == 4


@pytest.mark.parametrize("expression", ["1/0", "10**9", "__import__('os')", "x", "9" * 201, "1e30*1e30", "(" * 150])
def test_the_demo_computes_numbers_alone(expression: str) -> None:
    from mcp.server.mcpserver.exceptions import ToolError

    from actorserve.actors.tools.demo import evaluate

    with pytest.raises(ToolError, match="expression"):
        evaluate(expression)
    assert evaluate("-2.5 * (3 % 2)") == -2.5


def test_a_template_needs_no_package_for_it() -> None:
    """It imports the modules of all kinds, also where nobody has installed what this one speaks by."""
    code = "import sys, actorserve.actors.tools.actor; assert not {'mcp', 'httpx2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
