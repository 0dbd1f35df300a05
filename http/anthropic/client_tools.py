"""Anthropic's tools that clients run: a request gives type and name alone, since its models know the rest."""

from __future__ import annotations

import msgspec

from .schemas import AnthropicTool, Object

BASH = "Runs a command in a bash shell that stays open between calls; restart: true begins a new one."
EDITOR = (
    "Views and edits files. view shows a file, or what is in a folder; create writes file_text to path; str_replace "
    "puts new_str in the place of old_str, which must stand there once; insert puts text behind the line insert_line."
)
UNDO = " undo_edit takes the last edit of a file back."
MEMORY = (
    "Files below /memories that are kept from one conversation to the next. view shows a file, or what is in a folder; "
    "create writes file_text to path; str_replace puts new_str in the place of old_str; insert puts insert_text at the "
    "line insert_line; delete takes path away; rename moves old_path to new_path."
)
INSERT_TEXT_SINCE = "text_editor_20250728"  # of the editor; what is inserted was new_str before
UNDO_UNTIL = "text_editor_20250124"
TEXT, LINE = {"type": "string"}, {"type": "integer"}
LINES = {"type": "array", "items": LINE, "minItems": 2, "maxItems": 2}
EDITS: Object = {
    "path": TEXT,
    "view_range": LINES,
    "file_text": TEXT,
    "old_str": TEXT,
    "new_str": TEXT,
    "insert_line": LINE,
}
COMMANDS = "view", "create", "str_replace", "insert"


def described(tool: AnthropicTool) -> AnthropicTool:
    """As a tool of one's own; any other is as it was."""
    kind = tool.type or ""
    if kind.startswith("bash_"):
        return _as_own(tool, BASH, {"command": TEXT, "restart": {"type": "boolean"}})
    if kind.startswith("text_editor_"):
        text: Object = {"insert_text": TEXT} if kind >= INSERT_TEXT_SINCE else {}
        more, undo = (("undo_edit",), UNDO) if kind <= UNDO_UNTIL else ((), "")
        return _as_own(tool, EDITOR + undo, _commands(*COMMANDS, *more) | EDITS | text, "command", "path")
    if kind.startswith("memory_"):
        moved: Object = {"insert_text": TEXT, "old_path": TEXT, "new_path": TEXT}
        return _as_own(tool, MEMORY, _commands(*COMMANDS, "delete", "rename") | EDITS | moved, "command")
    return tool


def _commands(*names: str) -> Object:
    return {"command": {"type": "string", "enum": [*names]}}


def _as_own(tool: AnthropicTool, description: str, properties: Object, *required: str) -> AnthropicTool:
    schema: Object = {"type": "object", "properties": properties, "required": [*required]}
    return msgspec.structs.replace(tool, type=None, description=description, input_schema=schema)
