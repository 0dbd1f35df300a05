"""Tools in a namespace: the model is offered them as functions of one name each, `<namespace>__<name>`, and a call is
given out as the client knows it, with both.

Codex offers the tools of each of its MCP servers so. Which names were made of which is told by the tools themselves, so
that whoever goes on with an answer finds it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from ....errors import bad_request
from ....generation.adapter import checked
from ..schemas import Object, ResponsesTool

NAMESPACE = "namespace"
BETWEEN = "__"
INSIDE = ("function", "custom")  # types of tools in a namespace


class NamespacedTool(NamedTuple):
    """A tool as the client names it."""

    namespace: str
    name: str


def joined(namespace: str | None, name: str) -> str:
    """One name for both. Some namespaces end as if the tool's name were to follow at once."""
    return f"{namespace.removesuffix(BETWEEN)}{BETWEEN}{name}" if namespace else name


def flattened(tools: list[ResponsesTool]) -> list[ResponsesTool]:
    """The same tools, and none in a namespace."""
    flat: list[ResponsesTool] = []
    for index, tool in enumerate(tools):
        flat += _inside(tool, f"tools[{index}]") if tool.type == NAMESPACE else [tool]
    names = Counter(tool.name for tool in flat if tool.name and tool.type in INSIDE)
    twice = next((name for name, count in names.items() if count > 1), None) if len(flat) > len(tools) else None
    if twice is not None:
        raise bad_request(f"tools: two of them are named {twice!r}, with their namespaces.", "tools")
    return flat


def _inside(space: ResponsesTool, path: str) -> list[ResponsesTool]:
    for name in ("name", "tools"):
        if not getattr(space, name):
            raise bad_request(f"{path}.{name} is missing.", f"{path}.{name}")
    found = []
    for index, given in enumerate(space.tools or ()):
        place = f"{path}.tools[{index}]"
        tool = checked(ResponsesTool, given, place)
        if tool.type not in INSIDE:
            raise bad_request(f"{place}: tools of type {tool.type!r} are not supported.", f"{place}.type")
        if not tool.name:
            raise bad_request(f"{place}.name is missing.", f"{place}.name")
        said = tool.description or space.description
        found.append(msgspec.structs.replace(tool, name=joined(space.name, tool.name), description=said))
    return found


def names_of(tools: Iterable[Mapping[str, Any]]) -> dict[str, NamespacedTool]:
    """By the names that the model was offered; of tools as a response says them again."""
    return {
        joined(space["name"], tool["name"]): NamespacedTool(space["name"], tool["name"])
        for space in tools
        if space.get("type") == NAMESPACE
        for tool in space["tools"]
    }


def plain(tool: Object) -> Object:
    """A tool as it is said again: what only a namespace has stands in no other."""
    return {name: value for name, value in tool.items() if name != "tools" or tool["type"] == NAMESPACE}
