"""Text to JSON by a schema's types, and Python's literals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorserve.http.output.events import Turn
from actorserve.http.output.parsers.registry import make_parser
from actorserve.http.output.parsers.values import inner, python_value, quoted, string, typed, types

SCHEMA: dict[str, Any] = {
    "properties": {
        "plain": {"type": "string"},
        "several": {"type": ["integer", "null"]},
        "any_of": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "one_of": {"oneOf": [{"type": "object"}, {"$ref": "#/$defs/Colour"}]},
        "part_unknown": {"anyOf": [{"type": "string"}, {}]},
        "reference": {"$ref": "#/$defs/Colour"},
        "enum": {"enum": ["a", 1, None]},
        "const": {"const": 1.5},
        "loop": {"$ref": "#/$defs/Loop"},
        "lost": {"$ref": "#/$defs/Lost"},
        "elsewhere": {"$ref": "https://example.com/x"},
        "true": True,
        "object": {"properties": {"a": {}}},
        "map": {"additionalProperties": {"type": "string"}},
        "list": {"items": {}},
    },
    "$defs": {"Colour": {"enum": ["red", "blue"]}, "Loop": {"$ref": "#/$defs/Loop"}},
}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("plain", {"string"}),
        ("several", {"integer", "null"}),
        ("any_of", {"string", "null"}),
        ("one_of", {"object", "string"}),
        ("part_unknown", set()),
        ("reference", {"string"}),
        ("enum", {"string", "integer", "null"}),
        ("const", {"number"}),
        ("loop", set()),
        ("lost", set()),
        ("elsewhere", set()),
        ("true", set()),
        ("absent", set()),
        ("object", {"object"}),
        ("map", {"object"}),
        ("list", {"array"}),
    ],
)
def test_types_of_a_schema(name: str, wanted: set[str]) -> None:
    assert types(SCHEMA, name) == wanted
    assert types({}, name) == types({"properties": 5}, name) == frozenset()


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/All"}, {"allOf": [{"$ref": "#/$defs/All"}]}])
def test_types_where_the_properties_are_elsewhere(schema: dict[str, Any]) -> None:
    """As of a union of models that the tool takes as a whole."""
    one, other = {"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": "string"}, "b": {}}}
    schema = {**schema, "$defs": {"All": {"type": "object", "oneOf": [{"$ref": "#/$defs/One"}, other]}, "One": one}}
    assert types(schema, "a") == {"integer", "string"} and types(schema, "b") == types(schema, "c") == set()


def test_types_of_properties_beside_others() -> None:
    schema = {
        "properties": {"own": {"$ref": "#/$defs/a~1b~0c"}},
        "allOf": [{"properties": {"b": {"const": 1}}}],
        "$defs": {"a/b~c": {"type": "boolean"}},
    }
    assert types(schema, "own") == {"boolean"} and types(schema, "b") == {"integer"}


OPTIONAL: dict[str, Any] = {
    "properties": {
        "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "days": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "counts": {"oneOf": [{"type": "null"}, {"type": "object", "additionalProperties": {"type": "integer"}}]},
        "loop": {"anyOf": [{"$ref": "#/$defs/Loops"}]},
        "closed": {"properties": {"x": {"type": "integer"}}, "additionalProperties": False},
    },
    "$defs": {
        "Place": {"allOf": [{"properties": {"x": {"type": "integer"}}}, {"properties": {"y": {"type": "number"}}}]}
    },
}


@pytest.mark.parametrize(
    ("property_", "name", "wanted"),
    [
        ("place", "x", {"type": "integer"}),
        ("place", "y", {"type": "number"}),
        ("place", "z", None),
        ("days", "item", {"type": "integer"}),
        ("counts", "a", {"type": "integer"}),
        ("loop", "a", None),
        ("closed", "x", {"type": "integer"}),
        ("closed", "y", False),
    ],
)
def test_parts_of_a_schema(property_: str, name: str, wanted: Any) -> None:
    assert inner(OPTIONAL["properties"][property_], OPTIONAL, name) == wanted
    assert types(OPTIONAL, "loop") == frozenset()


def test_members_of_what_may_be_left_out() -> None:
    parser = make_parser(reasoning=None, tools="minimax_m3", schemas={"f": OPTIONAL})
    text = (
        '<tool_call><invoke name="f"><place><x>1</x><y>2.5</y></place><days><item>3</item></days>'
        "<counts><a>4</a></counts><days></days></invoke></tool_call>"
    )
    turn = Turn()
    turn.add([*parser.feed(text.replace("<", "]<]minimax[>[<")), *parser.finish()])
    said = '{"place": {"x": 1, "y": 2.5}, "days": [3], "counts": {"a": 4}, "days": []}'
    assert [call.arguments for call in turn.calls] == [said]


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("<stops><x>1</x><y>2.5</y></stops>", '{"stops": [{"x": 1, "y": 2.5}]}'),
        ("<stops><item><x>1</x></item><item><y>2</y></item></stops>", '{"stops": [{"x": 1}, {"y": 2}]}'),
        ("<days><day>1</day><day>2</day></days>", '{"days": [1, 2]}'),
        ("<closed><item>1</item></closed>", '{"closed": {"item": "1"}}'),
    ],
)
def test_names_of_a_lists_members(inside: str, said: str) -> None:
    schema = OPTIONAL | {"properties": OPTIONAL["properties"] | {"closed": {"type": "object"}}}
    schema["properties"]["stops"] = {"type": "array", "items": {"$ref": "#/$defs/Place"}}
    schema["properties"]["days"] = {"type": "array", "items": {"type": "integer"}}
    parser = make_parser(reasoning=None, tools="minimax_m3", schemas={"f": schema})
    text = f'<tool_call><invoke name="f">{inside}</invoke></tool_call>'
    turn = Turn()
    turn.add([*parser.feed(text.replace("<", "]<]minimax[>[<")), *parser.finish()])
    assert [call.arguments for call in turn.calls] == [said]


def test_members_of_one_name_are_a_list() -> None:
    parser = make_parser(reasoning=None, tools="minimax_m3", schemas={"f": OPTIONAL})
    text = '<tool_call><invoke name="f"><counts><a>1</a><b>2</b><a>3</a></counts></invoke></tool_call>'
    turn = Turn()
    turn.add([*parser.feed(text.replace("<", "]<]minimax[>[<")), *parser.finish()])
    assert [call.arguments for call in turn.calls] == ['{"counts": {"a": [1, 3], "b": 2}}']


@pytest.mark.parametrize(
    ("text", "wanted", "value"),
    [
        (" 7\n", {"integer"}, 7),
        ("7", {"string", "null"}, "7"),
        ("7", {"string", "integer"}, 7),
        ("7", {"string", "number"}, 7),
        ("7.5", {"string", "integer"}, "7.5"),
        ("null", {"string", "null"}, None),
        ("None", {"string", "null"}, None),
        ('"quoted"', {"string", "null"}, '"quoted"'),
        ('"quoted"', set(), '"quoted"'),
        (" 7", set(), " 7"),
        ('"quoted"', {"integer"}, "quoted"),
        (" many ", {"integer"}, " many "),
        ("True", {"boolean"}, True),
        ("{'a': 1, 'b': [True, None]}", {"object"}, {"a": 1, "b": [True, None]}),
        ("['é', (1, 2)]", {"array", "null"}, ["é", [1, 2]]),
        ("{'a': 1}", {"object", "string"}, "{'a': 1}"),
        ("{'a': 1}", set(), "{'a': 1}"),
        ("{'a': f(1)}", {"object"}, "{'a': f(1)}"),
        ("{'a': 1", {"object"}, "{'a': 1"),
        ('{"a": [1e5]}', {"object"}, {"a": [1e5]}),
        ('{"a": NaN}', {"object"}, '{"a": NaN}'),
        ("Infinity", {"number"}, "Infinity"),
        ("[" * 100_000, {"array"}, "[" * 100_000),
        ("", {"integer"}, ""),
        ("007", {"integer"}, 7),
        (" -0 ", {"number"}, 0),
        ("+00", {"integer", "null"}, 0),
        ("007", {"integer", "string"}, "007"),
        ("007", {"array"}, "007"),
        ("0" * 100_000 + "7", {"integer"}, 7),
        ("0" * 100_000 + "x", {"integer"}, "0" * 100_000 + "x"),
        ("1" * 301, {"integer"}, int("1" * 301)),
        ("+" + "1" * 301, {"integer"}, "+" + "1" * 301),
        ("٠٧", {"integer"}, "٠٧"),
        ("red", set(), "red"),
        ("[1, 2]", set(), "[1, 2]"),
        ("[1, 2]", {"array"}, [1, 2]),
    ],
)
def test_value_of_a_text(text: str, wanted: set[str], value: object) -> None:
    assert json.loads(typed(text, frozenset(wanted))) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-1", -1),
        ("(1, [2, None])", [1, [2, None]]),
        ("{1: True}", {"1": True}),
        ("'a' 'b'", "ab"),
        ("'a\n\tb\\n\\\\'", "a\n\tb\n\\"),
        ('"say \\"a\r\nb\\"\n"', 'say "a\r\nb"\n'),
        ("['a\nb', {'c': 'd\n'}]", ["a\nb", {"c": "d\n"}]),
        ("'a \\\nb\nc'", "a b\nc"),
        ("a\n'b'", "a\n'b'"),
        ("true", True),
        ("1e999", None),
        ("[1e999, -1e999, True, 'Infinity']", [None, None, True, "Infinity"]),
        ("{'b', 1, ('a',)}", ["b", 1, ["a"]]),
        ("07", 7),
        ("-010", -10),
        ("+1_0", 10),
        ("0x", "0x"),
        ("b'x'", "b'x'"),
        ("1 + 2j", "1 + 2j"),
        ("__import__('os')", "__import__('os')"),
        ("[x for x in y]", "[x for x in y]"),
        ("'\\ud800'", "\ufffd"),
        ("'\\ud83d\\ude42'", "🙂"),
        ("'\x00'", "\x00"),
        ("(" * 10_000, "(" * 10_000),
        ("-" * 50_000 + "1", "-" * 50_000 + "1"),
        ("9" * 10_000, "9" * 10_000),
        ("[" + "1, " * 6_000 + "1]", [1] * 6_001),
        ("{" + "1, " * 6_000 + "1}", "{" + "1, " * 6_000 + "1}"),
        ("'" + "1, " * 6_000 + "'", "1, " * 6_000),
    ],
)
def test_value_of_a_literal(text: str, value: object) -> None:
    said = python_value(text)
    said.encode()
    assert json.loads(said) == value


@given(st.lists(st.text()))
def test_quoted_pieces_may_be_joined(pieces: list[str]) -> None:
    assert json.loads('"' + "".join(map(quoted, pieces)) + '"') == "".join(pieces)


def test_strings() -> None:
    assert quoted('é"\n') == 'é\\"\\n'
    assert string('"a\\u00e9\n"') == "aé\n"
    assert string('"\\ud83d\\ude00"') == "😀"
    assert [string(raw) for raw in ('"\\ud800"', '"\\u12"', "5", '"a')] == [None] * 4
