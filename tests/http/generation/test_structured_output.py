"""Which constraint a request's fields come to, by all the names that clients have for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.prepare import ask_chat
from actorserve.http.generation.structured_output import OPTIONS, OTHER_NAMES, OUTPUTS, constraint_of
from actorserve.http.openai.schemas import ChatRequest, CompletionRequest
from actorserve.http.output.events import Call, Turn
from tests.http.bodies import HI, body_of
from tests.http.serving import SETTINGS

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def constraint(**fields: Any) -> tuple[Any, str]:
    """The same for chat and completions."""
    asked = [constraint_of(decode(ChatRequest, body_of(messages=HI, **fields)))]
    asked.append(constraint_of(decode(CompletionRequest, body_of(prompt="a", **fields))))
    assert asked[0] == asked[1]
    found, field = asked[0]
    return None if found is None else json.loads(found), field


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_object", "schema": None}, {"json_object": True}),
        ({"type": "json_object", "schema": {}}, {"json_object": True}),
        ({"type": "json_object", "schema": SCHEMA}, {"json_schema": SCHEMA, "strict": False}),
        ({"type": "json_schema", "schema": SCHEMA}, {"json_schema": SCHEMA, "strict": False}),
        ({"type": "json_schema", "schema": SCHEMA, "strict": True}, {"json_schema": SCHEMA, "strict": True}),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, {"json_schema": SCHEMA, "strict": False}),
    ],
)
def test_response_formats(given: dict[str, Any], wanted: Any) -> None:
    assert constraint(response_format=given) == (wanted, "response_format")


@pytest.mark.parametrize("schema", [5, "a", []])
@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_a_schema_that_is_none(kind: str, schema: Any) -> None:
    with pytest.raises(ApiError, match="must be a JSON schema") as refused:
        constraint(response_format={"type": kind, "schema": schema})
    assert refused.value.param == "response_format.schema"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("guided_json", SCHEMA),
        ("guided_json", "{}"),
        ("guided_regex", "a+"),
        ("guided_choice", ["a", "b"]),
        ("guided_grammar", "root ::= [0-9]"),
        ("json_schema", SCHEMA),
        ("regex", "a+"),
        ("ebnf", "root ::= [0-9]"),
        ("grammar", "root ::= [0-9]"),
    ],
)
def test_other_names(field: str, value: Any) -> None:
    assert constraint(**{field: value}) == ({OTHER_NAMES[field]: value}, field)
    with pytest.raises(ApiError, match=f"Only one of structured_outputs and {field}"):
        constraint(structured_outputs={"regex": "b"}, **{field: value})


@pytest.mark.parametrize(
    ("new", "old", "value"),
    [
        ("grammar", "guided_grammar", "root ::= [0-9]"),
        ("json", "guided_json", SCHEMA),
        ("choice", "guided_choice", ["a"]),
    ],
)
def test_the_same_by_an_old_and_a_new_name(new: str, old: str, value: Any) -> None:
    assert constraint(structured_outputs={new: value}, **{old: value}) == (
        {OTHER_NAMES[old]: value},
        "structured_outputs",
    )
    with pytest.raises(ApiError, match=f"Only one of structured_outputs and {old}"):
        constraint(structured_outputs={new: value, "whitespace_pattern": "x"}, **{old: value})
    with pytest.raises(ApiError, match="Only one of structured_outputs and regex"):
        constraint(structured_outputs={new: value}, regex="a+", **{old: value})


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"disable_any_whitespace": True}, {"blanks": ""}),
        ({"whitespace_pattern": "[ ]?"}, {"blanks": "[ ]?"}),
        ({"disable_additional_properties": True}, {"closed": True}),
        ({"disable_any_whitespace": False, "disable_additional_properties": None, "whitespace_pattern": None}, {}),
    ],
)
def test_options_of_json(options: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert constraint(structured_outputs={"json": SCHEMA, **options})[0] == {"json_schema": SCHEMA, **wanted}


def test_a_pattern_of_whitespace() -> None:
    found, _ = constraint(guided_json=SCHEMA, guided_whitespace_pattern=" ")
    assert found == {"json_schema": SCHEMA, "blanks": " "}
    with pytest.raises(ApiError, match="whitespace_pattern must be a string"):
        constraint(structured_outputs={"json": SCHEMA, "whitespace_pattern": 5})


def test_what_asks_for_nothing() -> None:
    assert constraint(**dict.fromkeys(OTHER_NAMES) | {"grammar": "", "regex": ""})[0] is None
    assert constraint(structured_outputs={"json_object": False})[0] is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "structured_outputs"),
        (dict.fromkeys((*OUTPUTS, *OPTIONS)), "structured_outputs"),
        ({"disable_any_whitespace": True}, "structured_outputs"),
        ({"json": SCHEMA, "regex": "a"}, "structured_outputs"),
        ({"json_schema": SCHEMA}, "structured_outputs.json_schema"),
        ({"regex": "a", "jsn": 1}, "structured_outputs.jsn"),
    ],
)
def test_structured_outputs_that_hold_nothing(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError, match="json, regex, choice, grammar, json_object, structural_tag") as caught:
        constraint(structured_outputs=given)
    assert caught.value.param == field
    assert constraint(structured_outputs={"regex": "a", "_backend": None, "disable_fallback": False})[0]


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}]
LOOSE = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}


def with_tools(parser: str | None, **fields: Any) -> tuple[Any, str]:
    found, field = constraint_of(decode(ChatRequest, body_of(messages=HI, **fields)), parser)
    return None if found is None else json.loads(found), field


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_goes_before_a_format(choice: Any) -> None:
    found, field = with_tools("hermes", tools=LOOSE, tool_choice=choice, response_format=FORMAT)
    assert field == "tool_choice" and found["tools"][0]["name"] == "weather" and "json_schema" not in found
    with pytest.raises(ApiError, match="Only one of structured_outputs and tool_choice"):
        with_tools("hermes", tools=LOOSE, tool_choice=choice, structured_outputs={"regex": "a"})
    with pytest.raises(ApiError, match=r"response_format\.type must be one of"):
        with_tools("hermes", tools=LOOSE, tool_choice=choice, response_format={"type": "yaml"})


@pytest.mark.parametrize("form", [FORMAT, {"type": "json_object"}])
def test_a_format_leaves_room_for_calls(form: Any) -> None:
    found, field = with_tools("hermes", tools=LOOSE, response_format=form, parallel_tool_calls=False)
    answer, calls = found["structural_tag"]["format"]["elements"]
    assert field == "response_format" and answer["type"] == "json_schema" and calls["elements"][0]["stop_after_first"]
    assert answer["strict"] is (form is not FORMAT) and calls["elements"][0]["tags"][0]["begin"].startswith(
        "<tool_call>"
    )
    alone, _ = with_tools("hermes", response_format=form)
    for parser, fields in (
        ("hermes", {"tools": LOOSE, "tool_choice": "none"}),
        (None, {"tools": LOOSE}),
        ("openai", {}),
    ):
        assert with_tools(parser, response_format=form, **fields) == (alone, "response_format")


def test_strict_tools_that_need_not_be_called() -> None:
    found, field = with_tools("hermes", tools=TOOLS)
    assert field == "tools" and found["structural_tag"]["format"]["triggers"] == ["<tool_call>"]
    for parser, fields in (("hermes", {"tools": LOOSE}), ("openai", {"tools": TOOLS}), ("hermes", {})):
        assert with_tools(parser, **fields)[0] is None
    tags = {"structural_tag": {"type": "structural_tag", "format": {"type": "any_text"}}}
    assert with_tools("hermes", tools=TOOLS, structured_outputs=tags) == (tags, "structured_outputs")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_forced_calls_in_the_channels_of_gpt_oss(choice: Any) -> None:
    """They are no JSON of ours: the model writes them as ever, and so they are read."""
    found, field = with_tools("openai", tools=LOOSE, tool_choice=choice)
    assert field == "tool_choice" and found["channels"] and "named" not in found
    settings = replace(SETTINGS, tool_parser="openai", reasoning_parser="openai_gptoss")
    asked = ask_chat(decode(ChatRequest, body_of(messages=HI, tools=LOOSE, tool_choice=choice)), settings, "id")
    assert asked.make_parser is not None
    parser, turn = asked.make_parser(True, "key"), Turn()
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather"
    turn.add([*parser.feed(f'{text} <|constrain|>json<|message|>{{"a": 1}}'), *parser.finish()])
    assert turn == Turn("", "Hm.", [Call("weather", arguments='{"a": 1}')])


def test_calls_of_gpt_oss_in_the_place_of_a_format() -> None:
    found, _ = with_tools("openai", tools=LOOSE, response_format=FORMAT)
    alone, _ = with_tools("openai", response_format=FORMAT)
    assert found == {**alone, "instead": [{"name": "weather", "parameters": {"type": "object"}}]}
    assert with_tools("openai", tools=LOOSE, tool_choice="none", response_format=FORMAT)[0] == alone


def test_marks_of_an_answer_may_stand_around_it() -> None:
    chat = decode(ChatRequest, body_of(messages=HI, response_format=FORMAT))
    found, _ = constraint_of(chat, None, "granite33")
    assert found is not None and json.loads(found)["around"] == ["<response>", "</response>"]
    alone, _ = constraint_of(chat, None, "qwen3")
    completion, _ = constraint_of(
        decode(CompletionRequest, body_of(prompt="a", response_format=FORMAT)), None, "granite33"
    )
    assert alone is not None and alone == completion and "around" not in json.loads(alone)


def test_an_answer_that_is_said_to_all() -> None:
    found, _ = with_tools("functionary", tools=LOOSE, response_format=FORMAT)
    answer, to_all, _ = found["structural_tag"]["format"]["elements"]
    assert to_all["begin"] == "all\n" and to_all["content"] == answer


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True, "blanks": "", "closed": True}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA, "blanks": "", "closed": True}),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
            {"json_schema": SCHEMA, "blanks": " ?", "closed": True},
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False, "whitespace_pattern": None}},
            {"json_schema": SCHEMA, "closed": True},
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": False}},
            {"json_schema": SCHEMA, "blanks": ""},
        ),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({}, None),
    ],
)
def test_how_json_looks_where_requests_say_nothing(fields: dict[str, Any], wanted: Any) -> None:
    """--structured-outputs-config."""
    defaults = {"disable_any_whitespace", "disable_additional_properties"}
    found, _ = constraint_of(decode(ChatRequest, body_of(messages=HI, **fields)), None, None, defaults)
    assert (None if found is None else json.loads(found)) == wanted
