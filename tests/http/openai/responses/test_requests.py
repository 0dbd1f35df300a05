"""Requests of the Responses API, as the chat requests that ask for the same; and each 400."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.fields.sampling import check_fields
from actorserve.http.generation.prompts import check_messages
from actorserve.http.openai.responses.requests import echo, input_items, renamed, to_chat
from actorserve.http.openai.responses.schemas import ResponsesRequest

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
TIME = {"type": "function", "name": "time", "description": "Says the time."}


def request_of(**fields: Any) -> ResponsesRequest:
    return decode(ResponsesRequest, json.dumps({"input": "hi", **fields}).encode())


def chat(**fields: Any) -> dict[str, Any]:
    """The chat request, which the server takes."""
    made = to_chat(request_of(**fields))
    request = chat_request(made)
    check_messages(request.messages)
    return made


def messages(items: list[Any], **fields: Any) -> list[Any]:
    return list(chat(input=items, **fields)["messages"])


def test_a_string_is_what_the_user_says() -> None:
    assert chat() == {"messages": [{"role": "user", "content": "hi"}]}
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert chat(instructions="Be brief.")["messages"] == said


def test_fields_that_chat_has_go_there() -> None:
    same = {
        "model": "m",
        "stream": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "user": "u",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "parallel_tool_calls": False,
        "top_k": 3,
        "seed": 1,
        "stop": ["x"],
        "chat_template_kwargs": {"a": 1},
    }
    made = chat(max_output_tokens=9, truncation="auto", **same)
    assert made == {**same, "messages": made["messages"], "max_completion_tokens": 9, "truncate_prompt_tokens": -1}


def test_null_and_unknown_fields_ask_for_nothing() -> None:
    names = [name for name in ResponsesRequest.__struct_fields__ if name != "input"]
    assert chat(**dict.fromkeys(names), another=1) == chat()


def test_what_asks_for_nothing_is_taken() -> None:
    fields: dict[str, Any] = {
        "store": False,
        "background": False,
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
        "top_logprobs": 5,
        "max_tool_calls": 3,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "text": {"format": {"type": "text"}, "verbosity": "high"},
        "reasoning": {"summary": "detailed", "generate_summary": "concise"},
        "tool_choice": "none",
        "tools": [],
        "stream_options": {"include_obfuscation": False},
        "stream": True,
    }
    assert chat(**fields) == chat(stream=True)


def test_hosted_tools_beside_functions_are_passed_over() -> None:
    """Agents offer them to every model."""
    tools = [{"type": "web_search"}, TIME, {"type": "file_search", "vector_store_ids": ["v"]}]
    assert chat(tools=tools) == chat(tools=[TIME])
    some = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}, TIME]}
    assert chat(tools=tools, tool_choice=some) == chat(tools=[TIME], tool_choice="required")
    told = echo(request_of(tools=tools), {})["tools"]
    assert [tool["name"] for tool in told] == [TIME["name"]]
    agents = ("computer", "shell", "local_shell", "apply_patch")
    assert chat(tools=[*({"type": kind} for kind in agents), TIME]) == chat(tools=[TIME])


SPACE = {"type": "namespace", "name": "mcp__clock", "description": "Clocks.", "tools": [TIME, WEATHER]}


def test_tools_in_a_namespace_are_functions_with_both_names() -> None:
    tools = chat(tools=[{"type": "web_search"}, {"type": "tool_search"}, SPACE, TIME])["tools"]
    names = [tool["function"]["name"] for tool in tools]
    assert names == [f"mcp__clock__{TIME['name']}", f"mcp__clock__{WEATHER['name']}", TIME["name"]]
    ended = {**SPACE, "name": "mcp__clock__", "tools": [{"type": "function", "name": "now", "defer_loading": True}]}
    (tool,) = chat(tools=[ended])["tools"]
    assert tool["function"] == {"name": "mcp__clock__now", "description": "Clocks."}
    assert echo(request_of(tools=[SPACE, TIME]), {})["tools"][0]["tools"] == SPACE["tools"], "as they came"


def test_a_call_of_a_tool_in_a_namespace_is_the_model_s_own_again() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}", "namespace": "mcp__clock"}
    output = {"type": "function_call_output", "call_id": "c", "namespace": "mcp__clock", "output": "noon"}
    said, result_of_it = chat(input=[call, output])["messages"]
    assert said["tool_calls"][0]["function"]["name"] == "mcp__clock__time"
    assert result_of_it["content"] == "noon"


def test_messages_have_roles_and_texts() -> None:
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "c", "annotations": []}],
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "system", "content": ""},
    ]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages(items) == [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "no"},
        {"role": "system", "content": ""},
    ]


def call(name: str, number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": "{}"}


def result(number: int, output: Any = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": output}


def chat_call(name: str, number: int) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}


@pytest.mark.parametrize(
    "error",
    [
        "it fell",
        {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "it fell"}]},
        {"type": "mcp_protocol_error", "code": -32602, "message": "it fell"},
    ],
)
def test_the_error_of_a_call_that_the_server_made(error: Any) -> None:
    made = {"type": "mcp_call", "id": "m", "server_label": "s", "name": "f", "arguments": "{}", "error": error}
    assert messages([made])[-1] == {"role": "tool", "tool_call_id": "m", "content": "it fell"}


def test_items_of_one_turn_are_one_message() -> None:
    thinking = {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"role": "assistant", "content": "wait"}
    items = [{"role": "user", "content": "hi"}, thinking, said, call("f", 1), call("g", 2), result(1), result(2)]
    assert messages(items) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "wait",
            "tool_calls": [chat_call("f", 1), chat_call("g", 2)],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "tool", "tool_call_id": "c2", "content": "r"},
    ]


def test_another_turn_begins_behind_results_texts_and_calls() -> None:
    said = {"role": "assistant", "content": "a"}
    thinking = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    turns = messages([call("f", 1), result(1), call("f", 2), thinking, said, said, thinking, thinking, call("f", 3)])
    assert turns == [
        {"role": "assistant", "tool_calls": [chat_call("f", 1)]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "reasoning_content": "s", "content": "a", "tool_calls": [chat_call("f", 2)]},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "reasoning_content": "s\n\ns", "tool_calls": [chat_call("f", 3)]},
    ]


def test_what_stands_between_a_call_and_its_result_is_of_its_turn() -> None:
    """Many templates want results right behind the message with their calls."""
    thinking = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    said = {"role": "assistant", "content": "wait"}
    (turn, *results) = messages([thinking, call("f", 1), said, thinking, call("f", 2), result(1), result(2)])
    assert turn == {
        "role": "assistant",
        "reasoning_content": "s\n\ns",
        "content": "wait",
        "tool_calls": [chat_call("f", 1), chat_call("f", 2)],
    }
    assert [one["role"] for one in results] == ["tool", "tool"]


def test_a_result_may_have_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}]
    assert messages([call("f", 1), result(1, parts)])[-1]["content"] == "a"


def test_earlier_items_stand_before_the_input() -> None:
    earlier = [{"role": "user", "content": "1"}, {"type": "message", "role": "assistant", "content": "2"}]
    made = to_chat(request_of(instructions="i", previous_response_id="resp_1"), earlier)["messages"]
    assert [message["content"] for message in made] == ["i", "1", "2", "hi"]
    alone = to_chat(request_of(input=None, previous_response_id="resp_1"), earlier)["messages"]
    assert [message["content"] for message in alone] == ["1", "2"]


def test_tools_are_functions() -> None:
    tools = chat(tools=[WEATHER, TIME])["tools"]
    weather = {"name": "weather", "parameters": {"type": "object"}, "strict": True}
    assert tools == [
        {"type": "function", "function": weather},
        {"type": "function", "function": {"name": "time", "description": "Says the time."}},
    ]


@pytest.mark.parametrize("choice", ["none", "auto", "required"])
def test_a_choice_by_its_name(choice: str) -> None:
    assert chat(tools=[TIME], tool_choice=choice)["tool_choice"] == choice


def test_a_choice_of_one_function_and_of_some() -> None:
    made = chat(tools=[WEATHER, TIME], tool_choice={"type": "function", "name": "time"})
    assert made["tool_choice"] == {"type": "function", "function": {"name": "time"}} and len(made["tools"]) == 2
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "time"}]}
    made = chat(tools=[WEATHER, TIME], tool_choice=allowed)
    assert made["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in made["tools"]] == ["time"]


def test_formats_of_the_text() -> None:
    assert chat(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    form = {"type": "json_schema", "name": "n", "schema": {}, "strict": False}
    made = chat(text={"format": form})["response_format"]
    assert made == {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": False}}


def test_reasoning_has_an_effort_or_is_off() -> None:
    assert chat(reasoning={"effort": "high"})["reasoning_effort"] == "high"
    made = chat(reasoning={"effort": "none"}, chat_template_kwargs={"thinking": 1, "a": 2})
    assert "reasoning_effort" not in made
    assert made["chat_template_kwargs"] == {"enable_thinking": False, "thinking": 1, "a": 2}


@pytest.mark.parametrize("status", ["in_progress", "incomplete"])
def test_a_message_of_the_assistants_that_is_not_complete_goes_on(status: str) -> None:
    said = {"role": "assistant", "status": status, "content": [{"type": "output_text", "text": "The best is ("}]}
    made = chat(input=[{"role": "user", "content": "a"}, said])
    assert made["continue_final_message"] is True and made["messages"][-1]["content"] == "The best is ("
    for items in (
        [said | {"status": "completed"}],
        [said | {"status": None}],
        [said, {"role": "user", "content": "b"}],
    ):
        assert "continue_final_message" not in chat(input=items)


def test_errors_of_the_chat_request_name_the_field_as_the_client_does() -> None:
    error = renamed(ApiError(400, "response_format is not supported by this server yet.", "response_format"))
    assert (error.param, error.message) == ("text.format", "text.format is not supported by this server yet.")
    other = ApiError(503, "Try again.", retry_after=1)
    assert renamed(other) is other
    inner = renamed(ApiError(400, "messages[2].content is missing.", "messages[2].content"))
    assert (inner.param, inner.message) == ("input[2].content", "input[2].content is missing.")
    kept = renamed(ApiError(400, "top_p must be less.", "top_p"))
    assert kept.param == "top_p"


@pytest.mark.parametrize("number", [1, (1 << 31) - 1])
def test_limits_are_numbers_that_a_message_holds(number: int) -> None:
    made = chat(max_output_tokens=number, max_tool_calls=number)
    assert made["max_completion_tokens"] == number


def test_metadata_up_to_its_limits() -> None:
    metadata = {f"{index:064}": "b" * 512 for index in range(16)}
    assert chat(metadata=metadata)["metadata"] == metadata


def test_a_chat_request_of_plain_text_passes_all_checks() -> None:
    request = chat_request(to_chat(request_of(temperature=1, top_p=0.5, max_output_tokens=3)))
    check_fields(request)
    assert (request.temperature, request.top_p, request.max_completion_tokens) == (1, 0.5, 3)


def test_nesting_that_cannot_be_written_again_is_refused() -> None:
    deep: Any = "x"
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(ApiError) as raised:
        chat_request({"messages": deep})
    assert raised.value.status == 400


def test_the_response_says_the_request_again() -> None:
    said = echo(request_of(tools=[TIME], tool_choice={"type": "function", "name": "time"}), {"top_p": 0.8})
    assert said["tools"] == [{**TIME, "parameters": None, "strict": None}]
    assert said["tool_choice"] == {"type": "function", "name": "time"}
    assert (said["temperature"], said["top_p"]) == (1.0, 0.8)
    assert (said["frequency_penalty"], said["presence_penalty"]) == (0.0, 0.0)
    penalties = {"frequency_penalty": 0.5, "presence_penalty": -1.0}
    assert echo(request_of(**penalties), {}).items() >= penalties.items()
    assert said["text"] == {"format": {"type": "text"}}
    assert (said["store"], said["background"], said["truncation"]) == (True, False, "disabled")
    assert (said["parallel_tool_calls"], said["top_logprobs"], said["metadata"]) == (True, 0, {})
    assert echo(request_of(store=False, background=True), {}).items() >= {"store": False, "background": True}.items()
    schema = {"type": "json_schema", "name": "n", "schema": {"a": None}}
    said = echo(request_of(text={"format": schema}, top_p=0.0, tool_choice="none", parallel_tool_calls=False), {})
    assert said["text"] == {"format": schema} and said["top_p"] == 0.0
    assert said["tool_choice"] == "none" and said["parallel_tool_calls"] is False


def test_input_is_kept_as_items_with_types_and_ids() -> None:
    assert input_items(request_of(), "k") == [
        {"type": "message", "id": "in_k0000", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    ]
    items = [call("f", 1), {"id": "mine", "role": "assistant", "content": "a"}]
    kept = input_items(request_of(input=items), "k")
    assert kept[0] == call("f", 1) | {"id": "in_k0000"}
    assert kept[1]["id"] == "mine" and kept[1]["content"] == [{"type": "output_text", "text": "a"}]
    assert to_chat(request_of(input=kept)) == to_chat(request_of(input=items))
    assert input_items(request_of(input=None), "k") == []
    odd = [{"role": "user", "content": "a", "id": name} for name in ([1], {"a": 1}, 5, "", None)]
    assert [item["id"] for item in input_items(request_of(input=odd), "k")] == [f"in_k000{n}" for n in range(5)]
