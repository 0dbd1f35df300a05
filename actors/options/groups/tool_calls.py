"""Tools that are called here."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .rendering import RenderingOptions


class ToolOptions(RenderingOptions, frozen=True, kw_only=True):
    """Tools that the server calls itself."""

    tool_server: Annotated[
        list[str],
        Meta(
            description="MCP servers whose tools /v1/responses may call: demo, HOST:PORT, a URL, or a JSON file with "
            "mcpServers (command or url of each); with commas between them"
        ),
    ] = []
    tool_timeout: Annotated[
        float, Meta(gt=0, le=3600, description="seconds in which a tool must have answered a call")
    ] = 60.0
    max_tool_calls: Annotated[
        int, Meta(ge=1, le=1024, description="of one response; the model is asked to go on without tools then")
    ] = 32
    allowed_tool_domains: Annotated[
        list[str], Meta(description="hosts, and all below them, whose MCP servers requests may name; none if left out")
    ] = []
    allow_private_tools: Annotated[
        bool, Meta(description="those may stand at addresses that are not public, such as 127.0.0.1")
    ] = False
