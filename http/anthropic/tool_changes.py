"""Tools that come and go amid a conversation: blocks of its system messages. Models are told of tools once, before all
that is said: of those that may be called now.
"""

from __future__ import annotations

from ..errors import bad_request
from .schemas import AnthropicTool, AnthropicTurn, ContentBlock

CHANGES = ("tool_addition", "tool_removal")


def changed_tools(
    tools: list[AnthropicTool], messages: list[AnthropicTurn]
) -> tuple[dict[str, AnthropicTool], set[str]]:
    """(all tools of the conversation, by their paths in the request; the names of those that may not be called at its
    end).
    """
    placed = {f"tools[{index}]": tool for index, tool in enumerate(tools)}
    gone: set[str] = set()
    for index, message in enumerate(messages):
        if message.role != "system" or isinstance(message.content, str):
            continue  # turns.py refuses them there
        for at, block in enumerate(message.content):
            if block.type in CHANGES:
                name = _changed(block, f"messages[{index}].content[{at}]", placed)
                gone = gone | {name} if block.type == "tool_removal" else gone - {name}
    return placed, gone


def _changed(block: ContentBlock, path: str, placed: dict[str, AnthropicTool]) -> str:
    """The name of the tool that comes or goes. What stands in the block itself takes the place of one of its name."""
    change, path = block.tool, f"{path}.tool"
    if change is None:
        raise bad_request(f"{path} is missing.", path)
    if change.type == "tool_definition":
        if block.type == "tool_removal":
            raise bad_request(f"{path}.type: tool_removal takes a tool_reference alone.", f"{path}.type")
        if change.definition is None:
            raise bad_request(f"{path}.definition is missing.", f"{path}.definition")
        name = change.definition.name
        same = next((one for one, tool in placed.items() if tool.name == name), f"{path}.definition")
        placed[same] = change.definition
        return name
    if change.name not in [tool.name for tool in placed.values()]:
        raise bad_request(f"{path}.name: {change.name!r} is not one of the tools.", f"{path}.name")
    return change.name or ""
