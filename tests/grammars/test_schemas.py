"""Whatever is drawn under a schema's grammar parses and fulfils the schema."""

from __future__ import annotations

import datetime
import json
from typing import Any

import jsonschema
import pytest

from actorserve.actors.grammars import GrammarError
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


def test_a_client_cannot_set_our_options() -> None:
    of = model("demo")
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": "[ ]+", "lenient": True}}
    assert of.grammar(json_schema=schema) == of.grammar(json_object=True)
