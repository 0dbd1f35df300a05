"""Requests of the Messages API, as the chat requests that ask for the same; and each 400."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorserve.http.anthropic.requests import omits_thinking, prompt_of, renamed, to_chat
from actorserve.http.anthropic.schemas import OTHERS, CountRequest, MessagesRequest
from actorserve.http.errors import ApiError
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.fields.sampling import check_fields
from actorserve.http.generation.prompts import chat_prompt
from actorserve.http.openai.schemas import ChatRequest

HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "weather", "description": "Says the weather.", "input_schema": {"type": "object"}}
CACHED = {"cache_control": {"type": "ephemeral"}}


def request_of(**fields: Any) -> MessagesRequest:
    return decode(MessagesRequest, json.dumps({"max_tokens": 5, "messages": HI, **fields}).encode())


def chat(**fields: Any) -> dict[str, Any]:
    """The chat request, which the server takes."""
    made = to_chat(request_of(**fields))
    chat_prompt(chat_request(made))
    return made


def messages(*turns: tuple[str, Any], **fields: Any) -> list[Any]:
    return list(chat(messages=[{"role": role, "content": content} for role, content in turns], **fields)["messages"])


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said, **CACHED}


def use(number: int, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"t{number}", "name": "weather", "input": given, **CACHED}


def result(number: int, content: Any = "r", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"t{number}", "content": content, **CACHED, **more}


def test_the_least_that_may_be_asked() -> None:
    made = chat()
    assert made == {"messages": HI, "max_tokens": 5}
    check_fields(chat_request(made))


def test_fields_that_chat_has_go_there() -> None:
    same = {"model": "m", "stream": True, "temperature": 1, "top_p": 0.9, "top_k": 3}
    made = chat(stop_sequences=["a", "b"], metadata={"user_id": "u"}, service_tier="auto", **same)
    assert made == {"messages": HI, "max_tokens": 5, "stop": ["a", "b"], "user": "u", **same}


def test_fields_that_are_chat_s_alone_have_their_effect() -> None:
    """Clients of other servers send them beside Anthropic's."""
    fields = {"ignore_eos": True, "min_p": 0.1, "seed": 7, "logit_bias": {"3": 1}, "cache_salt": "a", "request_id": "r"}
    assert chat(**fields) == chat() | fields
    assert {*OTHERS} <= {*MessagesRequest.__struct_fields__} & {*ChatRequest.__struct_fields__}


def test_null_and_unknown_fields_ask_for_nothing() -> None:
    names = [name for name in MessagesRequest.__struct_fields__ if name not in ("messages", "max_tokens")]
    assert chat(**dict.fromkeys(names), another=1, **CACHED) == chat()
    assert chat(metadata={"user_id": None}, stop_sequences=[], tools=[], speed="standard", mcp_servers=[]) == chat()


def test_the_system_prompt_stands_first() -> None:
    assert messages(("user", "hi"), system="Be brief.")[0] == {"role": "system", "content": "Be brief."}
    assert messages(("user", "hi"), system=[text("Be brief.")])[0] == {"role": "system", "content": "Be brief."}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages(("user", "hi"), system=[text("a"), text("b")])[0] == {"role": "system", "content": parts}
    assert messages(("user", "hi"), system="") == HI and messages(("user", "hi"), system=[]) == HI


def test_what_is_not_for_the_model_is_left_out() -> None:
    """Claude Code's first block, with which no request would begin like another."""
    bill = "x-anthropic-billing-header: cc_version=2.1.160.bca; cc_entrypoint=cli; cch=d1d48;"
    assert messages(("user", "hi"), system=[text(bill), text("Be brief.")])[0]["content"] == "Be brief."
    assert messages(("user", "hi"), system=[text(bill)]) == messages(("user", "hi"), system=bill) == HI
    assert messages(("user", "hi"), ("system", bill), ("system", "Now.")) == [
        *HI,
        {"role": "system", "content": "Now."},
    ]
    assert messages(("user", bill)) == [{"role": "user", "content": bill}]
    for note in (bill, [text(bill)]):  # turns with nothing else between them are one
        said = messages(("user", "a"), ("system", note), ("user", "b"))
        assert said == [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


def test_documents_of_text_are_what_they_say() -> None:
    """AI SDK sends files of plain text so."""
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
    assert messages(("user", [plain])) == [{"role": "user", "content": "x"}]
    named = plain | {"title": "T", "context": "C", "citations": {"enabled": False}, "cache_control": None}
    parts = [{"type": "text", "text": said} for said in ("T", "C", "x", "hi")]
    assert messages(("user", [named, text("hi")]))[0]["content"] == parts
    blocks = {"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}}
    assert [part["text"] for part in messages(("user", [blocks]))[0]["content"]] == ["a", "b"]
    answered = messages(("user", "hi"), ("assistant", [use(1)]), ("user", [result(1, [plain])]))[-1]
    assert (answered["role"], answered["content"]) == ("tool", "x")


def test_what_was_found_is_what_it_says() -> None:
    found = {"type": "search_result", "source": "https://a", "title": "T", "content": [text("x"), text("y")], **CACHED}
    answered = messages(("user", "hi"), ("assistant", [use(1)]), ("user", [result(1, [found])]))[-1]
    assert [part["text"] for part in answered["content"]] == ["T", "https://a", "x", "y"]
    bare = found | {"source": None, "title": None}
    assert [part["text"] for part in messages(("user", [bare]))[0]["content"]] == ["x", "y"]


def test_a_tool_that_was_found_is_its_name() -> None:
    """All tools are offered at once, those with defer_loading too."""
    named = {"type": "tool_reference", "tool_name": "weather"}
    answered = messages(("user", "hi"), ("assistant", [use(1)]), ("user", [result(1, [named])]))[-1]
    assert answered["content"] == "weather"
    assert chat(tools=[TOOL | {"defer_loading": True}]) == chat(tools=[TOOL])


def run(number: int, kind: str = "server_tool_use", name: str = "web_search", **asked: str) -> dict[str, Any]:
    return {"type": kind, "id": f"s{number}", "name": name, "input": asked}


def gave(number: int, content: Any, kind: str = "web_search") -> dict[str, Any]:
    return {"type": f"{kind}_tool_result", "tool_use_id": f"s{number}", "content": content}


def test_tools_that_another_server_ran_are_calls_and_their_results() -> None:
    """As a history that Anthropic has answered: all of it stands in one message."""
    page = {"type": "web_search_result", "url": "https://a", "title": "T", "encrypted_content": "x", "page_age": None}
    wrong = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    echo = run(3, "mcp_tool_use", "echo") | {"server_name": "here"}
    answered = [
        text("Let me look."),
        *(run(1, query="a"), run(2, query="b"), gave(1, [page]), gave(2, wrong)),
        *(echo, gave(3, [text("so"), text("it is")], "mcp")),
        text("Found."),
    ]
    said = messages(("user", "hi"), ("assistant", answered), ("user", "thanks"))[1:-1]
    assert [one["role"] for one in said] == ["assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert said[0]["content"] == "Let me look."
    calls = [(call["id"], call["function"]) for call in said[0]["tool_calls"]]
    assert calls == [
        (f"s{n}", {"name": "web_search", "arguments": f'{{"query":"{q}"}}'}) for n, q in ((1, "a"), (2, "b"))
    ]
    assert [one["tool_call_id"] for one in said if one["role"] == "tool"] == ["s1", "s2", "s3"]
    found = {name: value for name, value in page.items() if name != "encrypted_content"}
    assert json.loads(said[1]["content"]) == [found] and json.loads(said[2]["content"]) == wrong
    assert said[4]["content"] == "so\nit is" and said[5] == {"role": "assistant", "content": "Found."}


def test_an_answer_goes_on_behind_what_a_tool_gave() -> None:
    """Where nothing was said to it yet, the model begins."""
    looked = [text("Let me look."), run(1, query="a"), gave(1, [])]
    for blocks, begins in ((looked, False), ([*looked, text("It")], True)):
        made = chat(messages=[*HI, {"role": "assistant", "content": blocks}])
        assert bool(made.get("continue_final_message")) is begins
        assert made["messages"][-1]["role"] == ("assistant" if begins else "tool")


def test_turns_of_text() -> None:
    said = messages(("user", [text("a")]), ("assistant", "b"), ("system", [text("c")]), ("user", [text("d")]))
    assert said == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "d"},
    ]


def test_neighbours_of_one_role_are_one_turn() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = messages(("user", "a"), ("user", [text("b")]), ("assistant", [use(1)]), ("assistant", "x"), ("user", "c"))
    assert said[0] == {"role": "user", "content": parts}
    assert said[1]["content"] == "x" and len(said[1]["tool_calls"]) == 1 and len(said) == 3


def test_results_of_tools_are_messages_before_what_the_user_says() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    said = messages(
        ("user", "hi"),
        ("assistant", [thinking, hidden, text("wait"), use(1, city="é", n=1 << 70), use(2)]),
        ("user", [text("so"), result(2, [text("x"), text("y")]), result(1, is_error=True)]),
    )
    calls = [
        {"id": "t1", "function": {"name": "weather", "arguments": '{"city":"é","n":1180591620717411303424}'}},
        {"id": "t2", "function": {"name": "weather", "arguments": "{}"}},
    ]
    assert said[1] == {
        "role": "assistant",
        "content": "wait",
        "reasoning_content": "hm",
        "tool_calls": [call | {"type": "function"} for call in calls],
    }
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    assert said[2:] == [
        {"role": "tool", "tool_call_id": "t2", "content": parts},
        {"role": "tool", "tool_call_id": "t1", "content": "r", "is_error": True},
        {"role": "user", "content": "so"},
    ]


def test_a_turn_of_results_has_no_other_message() -> None:
    said = messages(("user", "hi"), ("assistant", [use(1)]), ("user", [result(1, None)]))
    assert said[-1] == {"role": "tool", "tool_call_id": "t1", "content": ""} and len(said) == 3


def test_the_beginning_of_the_answer_is_gone_on_with() -> None:
    made = chat(messages=[*HI, {"role": "assistant", "content": "The answer is ("}])
    assert made["continue_final_message"] is True and made["add_generation_prompt"] is False
    assert chat_prompt(chat_request(made)).continue_final_message
    assert "continue_final_message" not in chat()


def test_tools_are_functions() -> None:
    made = chat(tools=[{**TOOL, **CACHED, "type": "custom", "strict": True}, {"name": "f", "input_schema": {}}])[
        "tools"
    ]
    weather = {"name": "weather", "description": TOOL["description"], "parameters": {"type": "object"}, "strict": True}
    assert made == [
        {"type": "function", "function": weather},
        {"type": "function", "function": {"name": "f", "parameters": {}}},
    ]


def test_hosted_tools_beside_functions_are_passed_over() -> None:
    """Clients offer them to every model."""
    hosted = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    ]
    assert chat(tools=[*hosted, TOOL]) == chat(tools=[TOOL])


@pytest.mark.parametrize(("choice", "chats"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_choices_of_tools(choice: str, chats: str) -> None:
    made = chat(tools=[TOOL], tool_choice={"type": choice})
    assert made["tool_choice"] == chats and "parallel_tool_calls" not in made
    made = chat(tools=[TOOL], tool_choice={"type": choice, "disable_parallel_tool_use": True})
    assert made["tool_choice"] == chats and made["parallel_tool_calls"] is False


def test_a_choice_of_one_tool() -> None:
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    made = chat(tools=[TOOL], tool_choice=choice)
    assert made["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert made["parallel_tool_calls"] is False


def test_thinking() -> None:
    on = chat(thinking={"type": "enabled", "budget_tokens": 4})
    assert on["thinking_token_budget"] == 4
    assert on["chat_template_kwargs"] == {"enable_thinking": True, "thinking": True}
    for budget in (5, 5000):  # as with thinking between calls, where it is of all answers together
        assert chat(thinking={"type": "enabled", "budget_tokens": budget})["thinking_token_budget"] == 4
    off = chat(thinking={"type": "disabled"}, chat_template_kwargs={"thinking": 1, "x": 2})
    assert "thinking_token_budget" not in off
    assert off["chat_template_kwargs"] == {"enable_thinking": False, "thinking": 1, "x": 2}
    assert "reasoning_effort" not in chat(thinking={"type": "disabled"}, output_config={"effort": "high"})
    assert chat(thinking={"type": "adaptive", "display": "updates"}) == chat()
    assert chat(chat_template_kwargs={"x": 2})["chat_template_kwargs"] == {"x": 2}
    assert omits_thinking(request_of(thinking={"type": "adaptive", "display": "omitted"}))
    assert not omits_thinking(request_of(thinking={"type": "adaptive", "display": "summarized"}))
    assert not omits_thinking(request_of())


def test_output_has_an_effort_and_a_format() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    made = chat(output_config={"effort": "high", "format": form})
    assert made["reasoning_effort"] == "high"
    schema = {"name": "output", "schema": {"type": "object"}, "strict": True}
    assert made["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert chat(output_format=form)["response_format"] == made["response_format"]


def test_limits() -> None:
    most = (1 << 31) - 1
    assert chat(max_tokens=most)["max_tokens"] == most and chat(max_tokens=1)["max_tokens"] == 1
    assert chat(temperature=0)["temperature"] == 0
    stops = ["a" * 1024] * 64
    assert chat(stop_sequences=stops)["stop"] == stops
    assert chat(thinking={"type": "enabled", "budget_tokens": 1})["thinking_token_budget"] == 1


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_an_answer_that_has_not_begun_is_none(content: Any) -> None:
    """Anthropic takes a last message of the assistant's that says nothing."""
    assert chat(messages=[*HI, {"role": "assistant", "content": content}]) == chat()


def test_a_prompt_is_counted_as_it_is_asked_for() -> None:
    fields: dict[str, Any] = {
        "messages": [*HI, {"role": "assistant", "content": "So"}],
        "system": "s",
        "tools": [TOOL],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    counted = prompt_of(decode(CountRequest, json.dumps(fields).encode()))
    asked = chat(**fields, max_tokens=2000)
    assert counted.items() <= asked.items()
    assert asked.keys() - counted.keys() == {"max_tokens", "thinking_token_budget"}


def test_errors_of_the_chat_request_name_the_field_as_the_client_does() -> None:
    name = "thinking_token_budget"
    error = renamed(ApiError(400, f"{name} is not supported by this server yet.", name))
    assert error.param == "thinking.budget_tokens"
    assert error.message == "thinking.budget_tokens is not supported by this server yet."
    kept = ApiError(400, "top_p must be less.", "top_p")
    assert renamed(kept) is kept
