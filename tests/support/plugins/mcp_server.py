"""An MCP server of tests, over its pipes or, with a port, over HTTP: it writes down each call that it is asked for.

`python mcp_server.py FOLDER [PORT]`: calls stand in FOLDER/calls, a line each; `wait` answers when FOLDER/open is
there.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who starts this file as a server needs its name alone
    from mcp.server import MCPServer


def make(folder: Path) -> MCPServer:
    from mcp.server import MCPServer
    from mcp_types import ToolAnnotations

    server: MCPServer = MCPServer("noted", log_level="ERROR")

    def note(text: str) -> None:
        with (folder / "calls").open("a") as file:
            file.write(f"{text}\n")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def say(text: str) -> str:
        """Say it again."""
        note(text)
        return text

    @server.tool()
    async def wait(text: str) -> str:
        """Say it again once the gate is open."""
        note(text)
        while not (folder / "open").exists():
            await asyncio.sleep(0.01)  # nothing tells that a file is there
        return text

    @server.tool()
    def fail(text: str) -> str:
        """Fail."""
        note(text)
        raise ValueError(text)

    return server


if __name__ == "__main__":
    made = make(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        made.run("streamable-http", port=int(sys.argv[2]))
    else:
        made.run("stdio")
