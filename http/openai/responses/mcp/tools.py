"""Tools of type `mcp` in a request: which servers they name, which of their tools are offered, which need approval."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from actorserve.actors.protocol.topics.tools import ServerAddress, Tool

from ....errors import ApiError, bad_request
from ....settings import Settings, Tools
from ..compaction import compacts
from ..schemas import MCP, McpApproval, McpToolFilter, Object, ResponsesRequest, ResponsesTool

LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
MOST_SERVERS = 16
MOST_HEADERS = 32
LONGEST_URL = 8192  # characters
LONGEST_HEADERS = 64 << 10  # characters of all of a server's: with a call they fit into the lane to the tools actor


class McpServer(NamedTuple):
    """One that a request names."""

    path: str  # of the tool in the request
    address: ServerAddress
    allowed: McpToolFilter | None
    approval: str | McpApproval


class OfferedTool(NamedTuple):
    """What the model may call."""

    server: McpServer
    tool: Tool
    needs_approval: bool

    @property
    def function(self) -> ResponsesTool:
        """As the model is offered it."""
        schema = dict(self.tool.input_schema)
        return ResponsesTool("function", self.tool.name, self.tool.description, schema)


def mcp_servers(request: ResponsesRequest, settings: Settings) -> list[McpServer]:
    """All that it names. ApiError names the field that cannot be."""
    found: list[McpServer] = []
    for index, tool in enumerate(() if compacts(request) else request.tools or ()):  # a summary calls nothing
        if tool.type != MCP:
            continue
        if settings.tools is None:
            text = f"tools[{index}]: tools of type 'mcp' are not supported: the server has no --tool-server."
            raise bad_request(text, f"tools[{index}].type")
        server = _server(tool, f"tools[{index}]", settings, settings.tools)
        if any(server.address.label == other.address.label for other in found):
            raise bad_request(f"{server.path}.server_label: two servers have this one.", f"{server.path}.server_label")
        found.append(server)
        if len(found) > MOST_SERVERS:
            raise bad_request(f"tools: at most {MOST_SERVERS} MCP servers are taken.", "tools")
    if found and isinstance(request.tool_choice, msgspec.Struct) and request.tool_choice.type == MCP:
        raise bad_request("tool_choice: type 'mcp' is not supported; auto, none and required are.", "tool_choice.type")
    return found


def _server(tool: ResponsesTool, path: str, settings: Settings, tools: Tools) -> McpServer:
    if not tool.server_label or not LABEL.fullmatch(tool.server_label):
        text = f"{path}.server_label must have 1 to 64 letters, digits, _ and -."
        raise bad_request(text, f"{path}.server_label")
    if tool.connector_id is not None:
        raise bad_request(f"{path}.connector_id is not supported.", f"{path}.connector_id")
    headers = _headers(tool, path)
    if tool.server_url is None:
        if tool.server_label not in tools.labels:
            known = ", ".join(sorted(tools.labels)) or "none"
            text = f"{path}.server_label: {tool.server_label!r} is none of the servers of --tool-server: {known}."
            raise bad_request(text, f"{path}.server_label")
        if headers:
            text = f"{path}.headers go with server_url: those of --tool-server have their own."
            raise bad_request(text, f"{path}.headers")
        address = ServerAddress(tool.server_label)
    else:
        address = ServerAddress(tool.server_label, _url(tool.server_url, path, settings), headers)
    approval = "always" if tool.require_approval is None else tool.require_approval
    allowed = McpToolFilter(tool.allowed_tools) if isinstance(tool.allowed_tools, list) else tool.allowed_tools
    return McpServer(path, address, allowed, approval)


def _url(url: str, path: str, settings: Settings) -> str:
    field = f"{path}.server_url"
    if not settings.tools_by_url:
        text = f"{field}: this server takes MCP servers by the labels of its --tool-server, and by no URL."
        raise bad_request(text, field)
    if len(url) > LONGEST_URL:
        raise bad_request(f"{field} has {len(url)} characters; at most {LONGEST_URL} are taken.", field)
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) and not parts.username
    except ValueError:
        is_one = False
    if not is_one:
        raise bad_request(f"{field} must be a URL of http or https with a host.", field)
    return url


def _headers(tool: ResponsesTool, path: str) -> dict[str, str]:
    headers = dict(tool.headers or {})
    for name, value in headers.items():
        if not HEADER.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise bad_request(f"{path}.headers: {name!r} cannot be sent.", f"{path}.headers")
    if len(headers) > MOST_HEADERS:
        raise bad_request(f"{path}.headers: at most {MOST_HEADERS} are taken.", f"{path}.headers")
    if tool.authorization is not None:
        if not tool.authorization.isprintable() or not tool.authorization.isascii():
            raise bad_request(f"{path}.authorization cannot be sent.", f"{path}.authorization")
        headers["Authorization"] = f"Bearer {tool.authorization}"
    if (size := sum(len(name) + len(value) for name, value in headers.items())) > LONGEST_HEADERS:
        field = f"{path}.{'headers' if len(tool.authorization or '') < size / 2 else 'authorization'}"
        text = f"{field}: what is sent with each call has {size} characters; at most {LONGEST_HEADERS} are taken."
        raise bad_request(text, field)
    return headers


def offered(lists: Iterable[tuple[McpServer, list[Tool]]], functions: Iterable[str]) -> dict[str, OfferedTool]:
    """By the names that the model has for them. 400 where two have one name."""
    found: dict[str, OfferedTool] = {}
    taken = set(functions)
    for server, tools in lists:
        for tool in _allowed(server, tools):
            if tool.name in taken:
                text = f"{server.path}: another tool is called {tool.name!r}; allowed_tools can leave one out."
                raise bad_request(text, f"{server.path}.allowed_tools")
            taken.add(tool.name)
            found[tool.name] = OfferedTool(server, tool, _needs_approval(server, tool))
    return found


def _allowed(server: McpServer, tools: list[Tool]) -> Iterator[Tool]:
    if server.allowed is None:
        yield from tools
        return
    names = {tool.name for tool in tools}
    missing = next((name for name in server.allowed.tool_names or () if name not in names), None)
    if missing is not None:
        text = f"{server.path}.allowed_tools: the server {server.address.label!r} has no tool {missing!r}."
        raise bad_request(text, f"{server.path}.allowed_tools")
    yield from (tool for tool in tools if _is_in(server.allowed, tool))


def _is_in(wanted: McpToolFilter, tool: Tool) -> bool:
    if wanted.tool_names is not None and tool.name not in wanted.tool_names:
        return False
    return wanted.read_only is None or wanted.read_only == _is_read_only(tool)


def _is_read_only(tool: Tool) -> bool:
    return bool((tool.annotations or {}).get("readOnlyHint"))


def _needs_approval(server: McpServer, tool: Tool) -> bool:
    """What is named by neither filter needs it."""
    if isinstance(server.approval, str):
        return server.approval == "always"
    if server.approval.always is not None and _is_in(server.approval.always, tool):
        return True
    return server.approval.never is None or not _is_in(server.approval.never, tool)


def listed_before(items: Iterable[Object]) -> dict[str, list[Tool]]:
    """Lists that the conversation has in it, by label: they are not asked for again."""
    found: dict[str, list[Tool]] = {}
    for item in items:
        if item.get("type") == "mcp_list_tools":
            try:
                found[str(item.get("server_label"))] = msgspec.convert(item.get("tools"), list[Tool])
            except msgspec.ValidationError as error:
                raise bad_request(f"input: an item mcp_list_tools has wrong tools: {error}", "input") from None
    return found


def told(tools: Iterable[Tool]) -> list[Object]:
    """As an item mcp_list_tools has them."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": tool.input_schema,
            "annotations": tool.annotations,
        }
        for tool in tools
    ]


def unreachable(server: McpServer, error: ApiError) -> ApiError:
    """The request fails where its tools cannot be listed."""
    field = f"{server.path}.server_label"
    return ApiError(error.status, f"{field}: {error.message}", field, error.code, error.retry_after)


def with_functions(request: ResponsesRequest, tools: Mapping[str, OfferedTool]) -> ResponsesRequest:
    """The same request, with functions in the place of servers."""
    others = [tool for tool in request.tools or () if tool.type != MCP]
    return msgspec.structs.replace(request, tools=others + [tool.function for tool in tools.values()])
