"""What of the Responses API cannot be done: a 400 that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.prompts import chat_prompt
from actorserve.http.openai.responses.requests import to_chat
from tests.http.openai.responses.test_requests import TIME, request_of, result


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        chat_prompt(chat_request(to_chat(request_of(**fields))))
    assert raised.value.status == 400 and raised.value.message
    return raised.value


IMAGE = {"type": "input_image", "image_url": "data:"}
PATCH = {"type": "custom", "name": "patch"}
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"tools": [{"type": "namespace", "tools": [TIME]}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools"),
    ({"tools": [TIME, {"type": "namespace", "name": "a", "tools": [{"type": "mcp"}]}]}, "tools[1].tools[0].type"),
    ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
    ({"tools": [{"type": "namespace", "name": "a", "tools": [TIME, TIME]}]}, "tools"),
    (
        {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function", "name": 5}]}]},
        "tools[0].tools[0].name",
    ),
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
    ({"input": [{"content": "a"}]}, "input[0].type"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": "a"}, {"role": "user", "content": [IMAGE]}]}, "input[1].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "refusal"}]}]}, "input[0].content[0].refusal"),
    ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]}, "input[0].arguments"),
    ({"input": [result(1, [IMAGE])]}, "input[0].output[0]"),
    ({"input": [{"type": "reasoning", "content": [IMAGE]}]}, "input[0].content[0]"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"context_management": [{"type": "clearing"}]}, "context_management[0].type"),
    (
        {"context_management": [{"type": "compaction", "compact_threshold": 0}]},
        "context_management[0].compact_threshold",
    ),
    (
        {"context_management": [{"type": "compaction"}], "include": ["message.output_text.logprobs"]},
        "include",
    ),
    ({"access_programs": {"cyber": "standard"}}, "access_programs"),
    ({"include": ["reasoning.encrypted_content", "message.output_text.colours"]}, "include[1]"),
    ({"top_logprobs": 1025}, "top_logprobs"),
    ({"top_logprobs": -2}, "top_logprobs"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 1 << 31}, "max_output_tokens"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"background": True, "store": False}, "background"),
    ({"stream_options": {}}, "stream_options"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ({"metadata": {"a" * 65: ""}}, "metadata"),
    ({"metadata": {"a": "b" * 513}}, "metadata"),
    ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"tools": [TIME, {"type": "mcp", "name": "patch"}]}, "tools[1].type"),
    ({"tools": [TIME, {"type": "custom"}]}, "tools[1].name"),
    ({"tools": [{"type": "custom", "name": "a", "format": {"type": "ebnf"}}]}, "tools[0].format.type"),
    ({"tools": [{"type": "custom", "name": "a", "format": {"type": "grammar"}}]}, "tools[0].format.syntax"),
    (
        {"tools": [{"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "lark"}}]},
        "tools[0].format.definition",
    ),
    ({"tools": [{"type": "custom", "name": "a", "format": 5}]}, "tools[0].format"),
    ({"tools": [TIME], "tool_choice": {"type": "custom", "name": "f"}}, "tool_choice.name"),
    ({"tools": [PATCH], "tool_choice": {"type": "function", "name": "patch"}}, "tool_choice.name"),
    ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]}, "input[0].input"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [TIME, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "web_search"}, TIME | {"name": "a b"}]}, "tools[1].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "time"}}, "tool_choice"),
    ({"tools": [TIME], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
    ({"tools": [TIME], "tool_choice": {"type": "custom", "name": "time"}}, "tool_choice.name"),
    ({"tools": [TIME], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
    (
        {"tools": [TIME], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}},
        "tool_choice.tools[0]",
    ),
    (
        {"tools": [TIME], "tool_choice": {"type": "allowed_tools", "tools": [{"type": ["function"], "name": "time"}]}},
        "tool_choice.tools[0]",
    ),
]


@pytest.mark.parametrize(("fields", "param"), REFUSALS, ids=lambda value: str(value)[:60])
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert param.split("[")[0].split(".")[0] in error.message


@pytest.mark.parametrize("field", ["input", "tools", "text", "metadata", "tool_choice", "reasoning"])
def test_a_wrong_type_is_refused_by_name(field: str) -> None:
    with pytest.raises(ApiError) as raised:
        request_of(**{field: 1})
    assert raised.value.param == field
