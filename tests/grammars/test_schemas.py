"""Whatever is drawn under a schema's grammar parses and fulfils the schema."""

from __future__ import annotations

import datetime
import json
from typing import Any

import jsonschema
import pytest

from actorserve.actors.grammar.compiler import GrammarError
from actorserve.actors.grammar.json_schema import adapt_schema
from tests.grammars.drawing import accepts, answer, model
from tests.grammars.schemas import SCHEMAS, TREE, array, made

CHECKER = jsonschema.FormatChecker(formats=["date", "email", "ipv4", "ipv6", "uuid"])
RUNS = 10


def is_moment(value: object) -> bool:
    """jsonschema's own needs another package. A minute may have a second 60, Z may be small."""
    datetime.datetime.fromisoformat(str(value).replace(":60", ":59").upper())
    return True


def is_time(value: object) -> bool:
    return is_moment(f"2024-02-29T{value}")


CHECKER.checkers |= {"date-time": (is_moment, ValueError), "time": (is_time, ValueError)}


def validate(text: str, schema: Any) -> None:
    jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(json.loads(text))


def test_there_are_fifty() -> None:
    assert len(SCHEMAS) >= 50
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_answers(name: str) -> None:
    schema = SCHEMAS[name]
    for run in range(RUNS):
        of = model(("demo", "byte level", "byte fallback")[run % 3])
        validate(answer(of, of.grammar(json_schema=schema), run), schema)


def test_blanks_are_bounded() -> None:
    of = model("demo")
    grammar = of.grammar(json_object=True)
    assert accepts(of, grammar, '{"a":\n  [1, 2],\n\t"b": {}}')
    assert not accepts(of, grammar, '{  "a": 1}')
    assert not accepts(of, grammar, "{\n\n}")
    assert accepts(of, grammar, "{\n" + " " * 40 + "}")
    assert not accepts(of, grammar, "{\n" + " " * 41 + "}")
    assert not accepts(of, grammar, " {}") and not accepts(of, grammar, "{} ") and not accepts(of, grammar, "[]")


def test_blanks_as_the_client_wants_them() -> None:
    of, schema = model("demo"), {"type": "array", "items": {"type": "integer"}, "minItems": 2}
    texts = ["[1,2]", "[1, 2]", "[1,  2]", "[1,\n2]"]

    def taken(**constraint: Any) -> list[bool]:
        grammar = of.grammar(**constraint)
        return [accepts(of, grammar, text) for text in texts]

    assert taken(json_schema=schema) == [True, True, False, True]
    assert taken(json_schema=schema, blanks="") == [True, False, False, False]
    assert taken(json_schema=schema, blanks="  ") == [True, False, True, False]
    compact = of.grammar(json_object=True, blanks="")
    assert accepts(of, compact, '{"a":[1,2]}') and not accepts(of, compact, '{"a": [1,2]}')
    with pytest.raises(GrammarError, match="repeats"):
        of.grammar(json_schema=schema, blanks="[ ]{0,20000}")


NUMBER = {"type": "object", "properties": {"properties": {"type": "integer"}}}


def test_objects_have_the_properties_that_are_named() -> None:
    """Where nothing is said of others: what models invent is seldom wanted."""
    of = model("demo")
    inner: dict[str, Any] = {"a": NUMBER, "b": {"type": "object"}, "c": NUMBER | {"additionalProperties": True}}
    grammar = of.grammar(json_schema=NUMBER | {"properties": inner})
    for text in ('{"a":{"properties":1}}', '{"b":{"x":1}}', '{"c":{"x":1}}', "{}"):
        assert accepts(of, grammar, text)
    for text in ('{"a":{"x":1}}', '{"x":1}'):
        assert not accepts(of, grammar, text)
    named = of.grammar(tools=[{"name": "f", "parameters": NUMBER}], named="f")
    assert accepts(of, named, '{"properties":1}') and not accepts(of, named, '{"x":1}')


@pytest.mark.parametrize(
    "more",
    [
        {"minProperties": 1},
        {"propertyNames": {"pattern": "[a-z]+"}},
        {"allOf": [{"properties": {"x": {"type": "integer"}}}]},
        {"anyOf": [{"properties": {"x": {"type": "integer"}}}, {"properties": {"y": {"type": "integer"}}}]},
        {"$ref": "#/$defs/more", "$defs": {"more": {"properties": {"x": {"type": "integer"}}}}},
        {"required": ["x"]},
        {"unevaluatedProperties": {"type": "integer"}},
    ],
)
def test_objects_that_may_have_more(more: dict[str, Any]) -> None:
    of = model("demo")
    assert accepts(of, of.grammar(json_schema=NUMBER | more, strict=False), '{"properties":1,"x":2}')


def test_objects_that_are_closed() -> None:
    of, schema = model("demo"), {"properties": {"a": NUMBER, "if": {"type": "integer"}}}
    assert accepts(of, of.grammar(json_schema=schema), '{"a":{"x":1}}')
    closed = of.grammar(json_schema=schema, closed=True)
    assert accepts(of, closed, '{"a":{"properties":1},"if":2}') and not accepts(of, closed, '{"a":{"x":1}}')


def test_what_a_schema_refuses() -> None:
    of = model("demo")
    grammar = of.grammar(json_schema=TREE)
    assert accepts(of, grammar, '{"value":1,"children":[{"value":2,"children":[]}]}')
    assert not accepts(of, grammar, '{"value":1,"children":[{"value":"2","children":[]}]}')
    assert not accepts(of, grammar, '{"value":1}')
    strict = of.grammar(json_schema=made({"a": {"const": 1}}))
    assert not accepts(of, strict, '{"a":1,"b":2}') and not accepts(of, strict, '{"a":2}')


def test_a_schema_may_be_a_string() -> None:
    of = model("demo")
    text = json.dumps(array({"const": 7}, 1, 2))
    assert of.grammar(json_schema=text) == of.grammar(json_schema=json.loads(text))


def test_what_is_called_like_a_keyword_is_a_name() -> None:
    of = model("demo")
    names = {"format": {"const": "date"}, "$ref": {"const": 1}, "x-guidance": {"type": "null"}, "enum": {"const": 2}}
    assert accepts(of, of.grammar(json_schema=made(names)), '{"format":"date","$ref":1,"x-guidance":null,"enum":2}')


def test_not_strict_leaves_out_what_cannot_be_enforced() -> None:
    of = model("demo")
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with pytest.raises(GrammarError, match="uniqueItems"):
        of.grammar(json_schema=schema)
    grammar = of.grammar(json_schema=schema, strict=False)
    assert accepts(of, grammar, "[1,1]") and not accepts(of, grammar, "[true]")


def test_what_is_not_enforced_is_named_once_however_often_it_stands_there() -> None:
    of = model("demo")
    of.grammars.remarks.clear()
    unique = {"type": "array", "items": {"type": "string", "format": "iri"}, "uniqueItems": True}
    grammar = of.grammar(json_schema=made({"a": unique, "b": unique}), strict=False)
    assert accepts(of, grammar, '{"a":["x"],"b":[]}') and not accepts(of, grammar, '{"a":[1],"b":[]}')
    assert of.grammars.remarks == ["uniqueItems", "format iri"]


ZOD_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


@pytest.mark.parametrize("pattern", [ZOD_EMAIL, r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"\bfox\b", r"(?<=a)b", r"(a)\1"])
def test_patterns_that_no_automaton_reads(pattern: str) -> None:
    of = model("demo")
    schema = made({"a": {"type": "string", "pattern": pattern}, "b": {"type": "string", "pattern": "^x+$"}})
    with pytest.raises(GrammarError, match="cannot be used"):
        of.grammar(json_schema=schema)
    of.grammars.remarks.clear()
    loose = of.grammar(json_schema=schema, strict=False)
    assert accepts(of, loose, '{"a":"é","b":"xx"}') and not accepts(of, loose, '{"a":"","b":"y"}')
    assert of.grammars.remarks == [f"pattern {pattern}"]
    tools = of.grammar(tools=[{"name": "f", "parameters": schema}], strict=False)
    assert accepts(of, tools, '[{"name":"f","parameters":{"a":"é","b":"x"}}]')


def test_a_format_stands_for_a_pattern_that_no_automaton_reads() -> None:
    of, schema = model("demo"), made({"a": {"type": "string", "format": "email", "pattern": ZOD_EMAIL}})
    for strict in (True, False):
        of.grammars.remarks.clear()
        grammar = of.grammar(json_schema=schema, strict=strict)
        assert accepts(of, grammar, '{"a":"a@b.ch"}') and not accepts(of, grammar, '{"a":"a"}')
        assert of.grammars.remarks == []
    schema["properties"]["a"]["format"] = "int32"  # says nothing
    with pytest.raises(GrammarError, match="look-around"):
        of.grammar(json_schema=schema)


def test_names_that_are_strings() -> None:
    """As zod writes it of records: so are all."""
    of, schema = model("demo"), {"propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}}
    grammar = of.grammar(json_schema={"type": "object"} | schema)
    assert accepts(of, grammar, '{"x":1}') and not accepts(of, grammar, '{"x":"1"}')
    with pytest.raises(GrammarError, match="propertyNames"):
        of.grammar(json_schema={"type": "object", "propertyNames": {"pattern": "a"}})


def test_a_client_cannot_set_our_options() -> None:
    of = model("demo")
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": "[ ]+", "lenient": True}}
    assert of.grammar(json_schema=schema) == of.grammar(json_object=True)


NO_X = {"patternProperties": {"^(?!x)[a-z]+$": {"type": "integer"}, "^x_": {"type": "null"}}}


@pytest.mark.parametrize(
    ("others", "taken", "refused"),
    [
        ({}, ['{"a":1,"x_":null}', '{"a":"b"}'], ['{"x_":1}']),
        ({"additionalProperties": False}, ['{"a":1,"x_":null}'], ['{"x_":1}', '{"a":"b"}']),
        ({"additionalProperties": {"type": "string"}}, ['{"a":1}', '{"a":"b"}'], ['{"a":null}']),
        ({"additionalProperties": True, "properties": {"p": {"type": "boolean"}}}, ['{"p":true,"a":[]}'], ['{"p":1}']),
    ],
)
def test_names_that_no_automaton_reads(others: dict[str, Any], taken: list[str], refused: list[str]) -> None:
    """What such names may have, any other one may, too; patterns that can be read go on holding."""
    of, schema = model("demo"), {"type": "object"} | NO_X | others
    with pytest.raises(GrammarError, match="look-around"):
        of.grammar(json_schema=schema)
    of.grammars.remarks.clear()
    loose = of.grammar(json_schema=schema, strict=False)
    assert [accepts(of, loose, text) for text in taken] == [True] * len(taken)
    assert [accepts(of, loose, text) for text in refused] == [False] * len(refused)
    assert of.grammars.remarks == ["pattern ^(?!x)[a-z]+$"]


@pytest.mark.parametrize("pattern", ["^a$", "^(a|b-1)$"])
def test_a_pattern_of_named_properties_alone_says_more_of_them(pattern: str) -> None:
    """No comma begins another name, which there is none of; of one name that is not there, it does."""
    of, named = model("demo"), {"a": {"type": "integer"}, "b-1": {"type": "integer"}}
    schema = {
        **{"type": "object", "properties": named, "required": ["a"], "additionalProperties": False},
        "patternProperties": {pattern: {"enum": [1, "b", 3]}},
    }
    grammar = of.grammar(json_schema=schema)
    for seed in range(RUNS):
        validate(answer(of, grammar, seed), schema)
    texts = ('{"a":1}', '{"a":3,"b-1":1}', '{"a":2}', '{"a":"b"}', '{"b-1":1}')
    assert [accepts(of, grammar, text) for text in texts] == [True, True, False, False, False]
    other = of.grammar(json_schema={**schema, "patternProperties": {"^(a|c)$": {"enum": [1, 3]}}})
    assert accepts(of, other, '{"a":1,"c":3}')


def test_names_that_others_refer_to_say_no_more_than_they_did() -> None:
    """Joined with a pattern they would: what is valid was refused."""
    of = model("demo")
    schema = {
        **{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}},
        "patternProperties": {"^(a|b)$": {"maximum": 5}, "^c": {"type": "integer"}},
        "additionalProperties": False,
    }
    read = adapt_schema(schema)
    assert read["properties"] == schema["properties"] and read["patternProperties"] == schema["patternProperties"]
    plain = {**schema, "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    assert "^(a|b)$" not in adapt_schema(plain)["patternProperties"]
    assert accepts(of, of.grammar(json_schema=plain), '{"a":5,"b":1}')
