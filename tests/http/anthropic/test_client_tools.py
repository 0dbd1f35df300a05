"""Anthropic's own tools that clients run: told to the model as functions, each with what its type takes."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from actorserve.http.anthropic.requests import to_chat
from actorserve.http.anthropic.schemas import MessagesRequest
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.prompts import chat_prompt

HI = [{"role": "user", "content": "hi"}]


def functions(*tools: dict[str, Any]) -> list[dict[str, Any]]:
    body = {"max_tokens": 5, "messages": HI, "tools": tools}
    chat = to_chat(decode(MessagesRequest, json.dumps(body).encode()))
    chat_prompt(chat_request(chat))
    return [tool["function"] for tool in chat["tools"]]


def test_each_is_a_function_by_its_name() -> None:
    bash, editor, memory = functions(
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10000},
        {"type": "memory_20250818", "name": "memory"},
    )
    assert [one["name"] for one in (bash, editor, memory)] == ["bash", "str_replace_based_edit_tool", "memory"]
    assert all(one["description"] for one in (bash, editor, memory))
    assert [*bash["parameters"]["properties"]] == ["command", "restart"] and not bash["parameters"]["required"]
    assert editor["parameters"]["required"] == ["command", "path"]
    commands = [one["parameters"]["properties"]["command"]["enum"] for one in (editor, memory)]
    assert commands == [
        ["view", "create", "str_replace", "insert"],
        ["view", "create", "str_replace", "insert", "delete", "rename"],
    ]


def test_memory_takes_what_anthropics_client_reads() -> None:
    """Each command's fields are among the schema's."""
    (memory,) = functions({"type": "memory_20250818", "name": "memory"})
    properties = memory["parameters"]["properties"]
    for name in ("View", "Create", "StrReplace", "Insert", "Delete", "Rename"):
        command = getattr(anthropic.types.beta, f"BetaMemoryTool20250818{name}Command")
        assert {*command.model_fields} <= {*properties}
        assert command.model_fields["command"].annotation.__args__[0] in properties["command"]["enum"]


@pytest.mark.parametrize(
    ("kind", "undoes", "inserts"),
    [
        ("text_editor_20241022", True, "new_str"),
        ("text_editor_20250124", True, "new_str"),
        ("text_editor_20250429", False, "new_str"),
        ("text_editor_20250728", False, "insert_text"),
    ],
)
def test_an_editor_is_that_of_its_day(kind: str, undoes: bool, inserts: str) -> None:
    (editor,) = functions({"type": kind, "name": "editor"})
    properties = editor["parameters"]["properties"]
    assert ("undo_edit" in properties["command"]["enum"]) == undoes == ("undo_edit" in editor["description"])
    assert inserts in properties and ("insert_text" in properties) == (inserts == "insert_text")
