"""Custom tools: offered as functions with one string, and given out as the text that it says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from actorserve.http.openai.responses.answers import ResponseAnswer
from actorserve.http.openai.responses.events import ResponseEvents
from actorserve.http.openai.responses.requests import echo
from actorserve.http.openai.responses.tools.custom import InputText
from actorserve.http.output.events import Arguments, CallStart, Content, Piece
from tests.http.openai.responses.scripted import KEY, THOUGHT, USAGE, events_of
from tests.http.openai.responses.test_requests import TIME, chat, request_of

PATCH = {"type": "custom", "name": "patch", "description": "Changes files."}
LARK = {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}}
REGEX = {**PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "a|b"}}
NAMED = {"type": "custom", "name": "patch"}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TEXT = 'a "b"\\\n\té😀/</x>'


def answer_of(**fields: Any) -> ResponseAnswer:
    return ResponseAnswer(KEY, "m", 1_700_000_000, echo(request_of(**fields), {}))


def written(answer: ResponseAnswer, pieces: list[Piece]) -> list[dict[str, Any]]:
    writer = ResponseEvents(answer)
    return events_of(writer.first() + writer.pieces(pieces) + writer.last([], "stop", USAGE, 1_700_000_009))


def function_of(tool: dict[str, Any], **fields: Any) -> dict[str, Any]:
    (made,) = chat(tools=[tool], **fields)["tools"]
    assert made["type"] == "function" and made["function"]["parameters"]["required"] == ["input"]
    function: dict[str, Any] = made["function"]
    return function


def test_it_is_offered_as_a_function() -> None:
    plain = function_of(PATCH)
    assert (plain["name"], plain["description"], plain.get("strict")) == ("patch", "Changes files.", None)
    assert plain["parameters"]["properties"] == {"input": {"type": "string"}}
    assert function_of({**PATCH, "format": {"type": "text"}}) == plain
    lark = function_of(LARK)
    assert lark["description"] == "Changes files.\n\nIts input keeps to this Lark grammar:\nstart: /a+/"
    regex = function_of(REGEX)
    assert regex["parameters"]["properties"]["input"]["pattern"] == "^(?:a|b)$" and regex["strict"] is True
    space = {"type": "namespace", "name": "files", "description": "All files.", "tools": [LARK]}
    assert function_of(space)["name"] == "files__patch"


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (PATCH, {"tool_choice": {"type": "function", "function": {"name": "patch"}}}),
        (LARK, {"tool_choice": "none", "structured_outputs": {"grammar": "start: /a+/"}}),
        (REGEX, {"tool_choice": "none", "structured_outputs": {"regex": "a|b"}}),
    ],
)
def test_it_is_called_by_force(tool: dict[str, Any], expected: dict[str, Any]) -> None:
    """Then the answer keeps to the tool's grammar, and not to a form of text."""
    made = chat(tools=[TIME, tool], tool_choice=NAMED, text={"format": {"type": "json_object"}})
    assert made.items() >= expected.items() and len(made["tools"]) == 2
    assert ("response_format" in made) == ("structured_outputs" not in made)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
    assert [one["function"]["name"] for one in chat(tools=[TIME, tool], tool_choice=allowed)["tools"]] == ["patch"]


def test_calls_go_back_as_they_came() -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": TEXT, "id": "ctc_1"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "done"}]},
    ]
    said, result = chat(input=items, tools=[PATCH])["messages"]
    assert said["tool_calls"][0]["function"]["name"] == "patch" and result["tool_call_id"] == "c"
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"input": TEXT}
    assert result == {"role": "tool", "tool_call_id": "c", "content": "done"}


def test_the_response_says_the_tool_again() -> None:
    assert echo(request_of(tools=[PATCH, LARK]), {})["tools"] == [{**PATCH, "format": {"type": "text"}}, LARK]


@pytest.mark.parametrize("cuts", [1, 3, 1000])
def test_a_call_is_given_out_as_its_text(cuts: int) -> None:
    arguments = json.dumps({"input": TEXT})
    parts = [arguments[at : at + cuts] for at in range(0, len(arguments), cuts)]
    pieces = [*THOUGHT, CallStart(0, "patch"), *(Arguments(0, part) for part in parts), CallStart(1, "time")]
    answer = answer_of(tools=[LARK, TIME])
    events = written(answer, [*pieces, Arguments(1, "{}")])
    for event in events:
        EVENT.validate_python(event)
    _, call, other = events[-1]["response"]["output"]
    assert call.items() >= {"type": "custom_tool_call", "name": "patch", "input": TEXT, "status": "completed"}.items()
    assert call["id"].startswith("ctc_") and call["call_id"].startswith("call_") and "arguments" not in call
    assert other["type"] == "function_call" and other["arguments"] == "{}"
    inside = [event for event in events if event.get("item_id") == call["id"]]
    *deltas, done = inside
    assert {event["type"] for event in deltas} == {"response.custom_tool_call_input.delta"}
    assert "".join(event["delta"] for event in deltas) == TEXT and all(event["delta"] for event in deltas)
    assert (done["type"], done["input"]) == ("response.custom_tool_call_input.done", TEXT)
    assert answer.whole([*pieces, Arguments(1, "{}")], "stop", USAGE, 1_700_000_009) == events[-1]["response"]
    Response.model_validate(events[-1]["response"])


def test_a_forced_call_is_all_of_the_answer() -> None:
    for tool in (LARK, REGEX):
        events = written(answer_of(tools=[tool], tool_choice=NAMED), [*THOUGHT, Content("aa"), Content("a")])
        _, call = events[-1]["response"]["output"]
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", "aaa")
    (message,) = written(answer_of(tools=[LARK]), [Content("aa")])[-1]["response"]["output"]
    assert message["type"] == "message", "nobody asked for a call"


def test_it_may_be_in_a_namespace() -> None:
    space = {"type": "namespace", "name": "files", "tools": [PATCH]}
    (call,) = written(answer_of(tools=[space]), [CallStart(0, "files__patch"), Arguments(0, '{"input": "x"}')])[-1][
        "response"
    ]["output"]
    assert (call["type"], call["namespace"], call["name"], call["input"]) == ("custom_tool_call", "files", "patch", "x")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input":"x"}', "x"),
        (' {\n "input" : "x" } ', "x"),
        ('{"input": ""}', ""),
        ("{}", ""),
        ("{ }", ""),
        ("", ""),
        ('{"inp', ""),
        ('{"input": "a\\n\\u00e9\\ud83d\\ude00\\/\\"', 'a\né😀/"'),
        ('{"input": "a\\', "a"),
        ('{"input": "a\\u00', "a"),
        ('{"input": "a\\q\\\\q"}', "a\\q\\q"),
        ('{"input": "\\ud800 and so on and on"}', "\ufffd and so on and on"),
        ('{"input": "\\udc00 and so on"}', "\ufffd and so on"),
        ('{"input": "\\uzzzz and so on and on"}', "\ufffdzzzz and so on and on"),
        ('{"input": "a\nb"}', "a\nb"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"in put": "x"}', '{"in put": "x"}'),
        ("*** Begin", "*** Begin"),
        ('["input"]', '["input"]'),
    ],
)
def test_the_text_in_arguments(arguments: str, text: str) -> None:
    assert InputText().feed(arguments) == text
    reader = InputText()
    assert "".join(map(reader.feed, arguments)) == text


PARTS = st.sampled_from(['{"input":', *' "\\u{}x\né', "d83d", "de00", "d800", "00e9", "n"])


@settings(max_examples=300)
@given(st.lists(PARTS, max_size=14).map("".join), st.booleans(), st.data())
def test_cuts_change_nothing(more: str, begun: bool, data: st.DataObject) -> None:
    """What has come out after each prefix is the same however it was cut: a successor goes on from there."""
    text = '{"input": "' * begun + more
    cut = data.draw(st.integers(0, len(text)))
    whole, slow, cut_once = InputText(), InputText(), InputText()
    expected = whole.feed(text[:cut])
    assert "".join(map(slow.feed, text[:cut])) == expected
    assert expected + whole.feed(text[cut:]) == cut_once.feed(text)
    expected.encode()


@settings(max_examples=100)
@given(st.text(), st.booleans())
def test_any_text_comes_out_as_it_went_in(text: str, plain: bool) -> None:
    assert InputText().feed(json.dumps({"input": text}, ensure_ascii=plain)) == text
