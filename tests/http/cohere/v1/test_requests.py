"""Requests of Cohere's chat, version 1, become those of version 2 that ask for the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorserve.http.cohere.requests import chat_of
from actorserve.http.cohere.v1.requests import history, newer, of_v1
from actorserve.http.cohere.v1.schemas import CohereChatV1Request
from actorserve.http.errors import ApiError, bad_request
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.fields.decoding import decode

CALL = {"name": "f", "parameters": {"a": 1}}
RESULTS = [{"call": CALL, "outputs": [{"b": 2}]}]


def request(**fields: Any) -> CohereChatV1Request:
    return decode(CohereChatV1Request, json.dumps({"message": "Who?", **fields}).encode())


def chat(**fields: Any) -> dict[str, Any]:
    made = chat_of(newer(request(**fields)), True, "documents")
    chat_request(made)
    return made


def test_the_preamble_and_the_history_stand_before_the_message() -> None:
    past = [
        {"role": "USER", "message": "Hi"},
        {"role": "CHATBOT", "message": "Yes?"},
        {"role": "SYSTEM", "message": "Be brief."},
    ]
    messages = chat(preamble="Be kind.", chat_history=past)["messages"]
    assert [(one["role"], one["content"]) for one in messages] == [
        ("system", "Be kind."),
        ("user", "Hi"),
        ("assistant", "Yes?"),
        ("system", "Be brief."),
        ("user", "Who?"),
    ]


def test_results_of_a_single_step_bring_their_calls() -> None:
    user, calls, result = chat(tool_results=RESULTS)["messages"]
    assert user == {"role": "user", "content": "Who?"}
    (call,) = calls["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert result == {"role": "tool", "content": '[{"b":2}]', "tool_call_id": call["id"]}
    assert [turn.role for turn in history(request(tool_results=RESULTS))] == ["USER", "CHATBOT", "TOOL"]


def test_results_of_several_steps_answer_the_calls_of_the_history() -> None:
    other = {"name": "f", "parameters": {"a": 2}}
    past = [{"role": "USER", "message": "Hi"}, {"role": "CHATBOT", "message": "", "tool_calls": [other, CALL, CALL]}]
    results = [*RESULTS, *RESULTS, {"call": other, "outputs": []}, {"call": {"name": "g"}, "outputs": []}]
    messages = chat(message="", chat_history=past, tool_results=results)["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "tool", "tool", "tool"]
    own = [call["id"] for call in messages[1]["tool_calls"]]
    assert len(set(own)) == 3
    assert [one["tool_call_id"] for one in messages[2:]] == [own[1], own[2], own[0], "result_2_3"]


def test_tools_are_those_of_json_schemas() -> None:
    given = {
        "day": {"type": "str", "description": "when", "required": True},
        "places": {"type": "List[str]"},
        "any": {"type": "Shape", "description": "how"},
    }
    tools = [{"name": "f", "description": "finds", "parameter_definitions": given}, {"name": "g"}]
    first, second = (tool["function"] for tool in chat(tools=tools)["tools"])
    assert first["parameters"] == {
        "type": "object",
        "properties": {
            "day": {"type": "string", "description": "when"},
            "places": {"type": "array"},
            "any": {"description": "how (Shape)"},
        },
        "required": ["day"],
    }
    assert second == {"name": "g", "parameters": {"type": "object", "properties": {}}}
    assert "tool_choice" not in chat(tools=tools, tool_results=RESULTS)
    assert chat(tools=tools, tool_results=RESULTS, force_single_step=True)["tool_choice"] == "none"


def test_documents_and_the_rest() -> None:
    made = chat(documents=[{"id": 3, "title": "t", "text": "a"}], safety_mode="NONE", k=3, p=0.5, max_tokens=7)
    assert made["documents"] == [{"id": "3", "title": "t", "text": "a"}]
    assert made["chat_template_kwargs"] == {"safety_mode": "OFF"}
    assert (made["top_k"], made["top_p"], made["max_completion_tokens"]) == (3, 0.5, 7)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"message": ""}, "message"),
        ({"message": None}, "message"),
        ({"connectors": [{"id": "web-search"}]}, "connectors"),
        ({"conversation_id": "a"}, "conversation_id"),
        ({"search_queries_only": True}, "search_queries_only"),
        ({"raw_prompting": True}, "raw_prompting"),
        ({"prompt_truncation": "AUTO"}, "prompt_truncation"),
        ({"citation_quality": "fast"}, "citation_quality"),
        ({"max_input_tokens": 5}, "max_input_tokens"),
        ({"num_generations": 2}, "num_generations"),
    ],
)
def test_what_cannot_be(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError, match=field) as caught:
        newer(request(**fields))
    assert (caught.value.status, caught.value.param) == (400, field)


def test_what_asks_for_nothing_is_taken() -> None:
    idle = {"connectors": [], "prompt_truncation": "OFF", "citation_quality": "off", "num_generations": 1}
    assert chat(**idle) == chat()


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ("messages[0].content", "preamble"),
        ("messages[1].content[1]", "chat_history[0].message"),
        ("messages[2].tool_calls[0].id", "chat_history[1].tool_calls[0].id"),
        ("messages[4].content", "chat_history[2].tool_results[1].outputs"),
        ("messages[5]", "message"),
        ("messages[6].tool_calls", "tool_results.tool_calls"),
        ("messages[7].content", "tool_results[0].outputs"),
        ("messages", "chat_history"),
        ("max_tokens", "max_tokens"),
    ],
)
def test_errors_name_the_place_in_this_version(wrong: str, place: str) -> None:
    """A preamble, and each result, is a message of the other."""
    past = [
        {"role": "USER", "message": "Hi"},
        {"role": "CHATBOT", "tool_calls": [CALL, CALL]},
        {"role": "TOOL", "tool_results": RESULTS * 2},
    ]
    body = request(preamble="Be kind.", chat_history=past, tool_results=RESULTS)
    assert len(newer(body).messages) == 8
    error = of_v1(bad_request(f"{wrong} is wrong.", wrong), body)
    assert (error.param, error.message) == (place, f"{place} is wrong.")
