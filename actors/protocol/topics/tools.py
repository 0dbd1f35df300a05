"""What frontends and the tools actor say to each other of MCP servers and their tools.

To list tools may be done again, and is asked for again when the actor dies. A call may not: it names the life of the
actor that is to make it, and a key by which that life knows it again. So it is made once or, where that life has died,
not again: whoever asked is told that nobody can say whether it was made.
"""

from __future__ import annotations

import msgspec

from ..wire import Message

LONGEST = 128 << 10  # bytes of a call's arguments, of its output, and of a server's list of tools


class ServerAddress(msgspec.Struct, array_like=True, frozen=True):
    """A server of the options, by its label; or one of the request's, by its URL."""

    label: str
    url: str = ""
    headers: dict[str, str] = {}


class Tool(msgspec.Struct, frozen=True):
    """One that a server has; as JSON inside ToolsListed."""

    name: str
    input_schema: dict[str, object]
    description: str | None = None
    annotations: dict[str, object] | None = None


class ListTools(Message, frozen=True, tag=150):
    """Frontend → tools: answered by ToolsListed, or Failed."""

    call: int
    server: ServerAddress


class CallTool(Message, frozen=True, tag=151):
    """Frontend → tools: answered by ToolCalled. By this life alone, once for each key."""

    call: int
    life: int
    key: bytes
    server: ServerAddress
    name: str
    arguments: str  # JSON of an object


class ToolsListed(Message, frozen=True, tag=152):
    """Tools → frontend."""

    call: int
    tools: bytes  # JSON of a list of Tool


class ToolCalled(Message, frozen=True, tag=153):
    """Tools → frontend: what a tool said, or what went wrong."""

    call: int
    output: str = ""
    error: str = ""


ToTools = ListTools | CallTool
