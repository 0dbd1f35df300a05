"""What of the Messages API cannot be done: a 400 that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorserve.http.anthropic.requests import to_chat
from actorserve.http.anthropic.schemas import MessagesRequest
from actorserve.http.errors import ApiError
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.prompts import chat_prompt
from tests.http.anthropic.test_requests import HI, TOOL, request_of, result, text, use


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        chat_prompt(chat_request(to_chat(request_of(**fields))))
    assert raised.value.status == 400 and raised.value.message
    return raised.value


FOUND = {"type": "search_result", "source": "a", "title": "T", "content": []}
ADDED: dict[str, Any] = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}
REMOVED = {"type": "tool_removal", "tool": {"type": "tool_definition", "definition": TOOL}}
IMAGE: dict[str, Any] = {"type": "image", "source": {"type": "url", "url": "https://x"}}


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    """Fields of a request whose last message has these blocks."""
    return {"messages": [*HI, {"role": role, "content": list(blocks)}]}


def document(kind: str, **source: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": kind, **source}}


RUN = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}}
GAVE = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}

REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    (said(text("a"), IMAGE), "messages[1].content[1]"),
    (said({"type": "document"}), "messages[1].content[0]"),
    (said(document("base64", data="AAAA")), "messages[1].content[0].source.type"),
    (said(document("text")), "messages[1].content[0].source.data"),
    (said(document("content", content=["a"])), "messages[1].content[0].source.content[0]"),
    (said(document("text", data="a") | {"citations": {"enabled": True}}), "messages[1].content[0].citations"),
    (said(FOUND | {"citations": {"enabled": True}}), "messages[1].content[0].citations"),
    (said(FOUND | {"source": IMAGE["source"]}), "messages[1].content[0].source"),
    (said({"type": "image", "source": "https://x"}), "messages[1].content[0].source"),
    (said({"type": "document", "source": "a"}), "messages[1].content[0].source"),
    (said({"type": "tool_reference"}), "messages[1].content[0].tool_name"),
    (said(RUN | {"name": None}, role="assistant"), "messages[1].content[0].name"),
    (said(RUN), "messages[1].content[0]"),
    (said(RUN, role="assistant"), "messages[1]"),
    (said(RUN, GAVE | {"tool_use_id": None}, role="assistant"), "messages[1].content[1].tool_use_id"),
    (said(GAVE), "messages[1].content[0]"),
    (said(result(1) | {"content": {}}), "messages[1].content[0].content"),
    (said(use(1)), "messages[1].content[0]"),
    (said({"type": "thinking", "thinking": "a"}), "messages[1].content[0]"),
    (said({"type": "text"}), "messages[1].content[0].text"),
    (said({"type": "thinking"}, text("a"), role="assistant"), "messages[1].content[0].thinking"),
    (said(result(1, [IMAGE])), "messages[1].content[0].content[0]"),
    (said(result(1, [text("a"), 1])), "messages[1].content[0].content[1]"),
    (said({"type": "tool_result", "content": "a"}), "messages[1].content[0].tool_use_id"),
    (said(use(1) | {"input": None}, role="assistant"), "messages[1].content[0].input"),
    (said(use(1) | {"id": None}, role="assistant"), "messages[1].content[0].id"),
    (said(use(1) | {"name": None}, role="assistant"), "messages[1].content[0].name"),
    (said(text("a"), use(1), role="assistant"), "messages[1]"),
    (said({"type": "thinking", "thinking": "a"}, role="assistant"), "messages[1]"),
    ({"system": [IMAGE]}, "system[0]"),
    ({"system": [ADDED]}, "system[0]"),
    (said(ADDED), "messages[1].content[0]"),
    (said(ADDED, role="system"), "messages[1].content[0].tool.name"),
    (said(ADDED | {"tool": None}, role="system"), "messages[1].content[0].tool"),
    (said(ADDED | {"tool": {"type": "tool_definition"}}, role="system"), "messages[1].content[0].tool.definition"),
    (said(REMOVED, role="system"), "messages[1].content[0].tool.type"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1 << 31}, "max_tokens"),
    ({"temperature": 1.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"stop_sequences": ["a", ""]}, "stop_sequences"),
    ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
    ({"stop_sequences": ["a" * 1025]}, "stop_sequences"),
    ({"container": "c"}, "container"),
    ({"inference_geo": "us"}, "inference_geo"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ({"fallbacks": [{"model": "m"}]}, "fallbacks"),
    ({"compaction": {"a": 1}}, "compaction"),
    ({"thread": {"type": "create"}}, "thread"),
    ({"speed": "fast"}, "speed"),
    ({"context_management": "a"}, "context_management"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL, {"type": "computer_20250124", "name": "computer"}]}, "tools[1].type"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"type": "web_fetch_1", "name": "w"}, {**TOOL, "name": "a b"}]}, "tools[1].name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSALS, ids=lambda value: str(value)[:60])
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param and param.split("[")[0].split(".")[0] in error.message


@pytest.mark.parametrize(
    "field", ["tools", "tool_choice", "thinking", "system", "metadata", "output_config", "messages"]
)
def test_a_wrong_type_is_refused_by_name(field: str) -> None:
    assert refused(**{field: 1}).param == field


@pytest.mark.parametrize("field", ["messages", "max_tokens"])
def test_what_is_missing_is_named(field: str) -> None:
    body = {"messages": HI, "max_tokens": 5}
    del body[field]
    with pytest.raises(ApiError, match=f"{field} is missing") as raised:
        decode(MessagesRequest, json.dumps(body).encode())
    assert raised.value.param == field
