"""Tools that must be called."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from actorserve.actors.grammar.compiler import GrammarError
from tests.grammars.drawing import accepts, answer, model
from tests.grammars.schemas import STRING, TREE, made

KINDS = ("demo", "byte level", "byte fallback")
TOOLS: dict[str, Any] = {
    "get_weather": made({"town": STRING, "unit": {"enum": ["C", "F"]}}),
    "plant": TREE,  # whose references are to its own root
    "nest": made({"inner": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
    "look_up": {"properties": {"$ref": STRING, "when": {"const": {"$ref": "#"}}}, "required": ["when"]},
    "anything": {},
}
LISTED = [{"name": name, "parameters": schema} for name, schema in TOOLS.items()] + [{"name": "ping"}]
ARGUMENTS = TOOLS | {"ping": {"type": "object", "maxProperties": 0}}


def check(name: str, arguments: Any) -> None:
    assert isinstance(arguments, dict)
    jsonschema.Draft202012Validator(ARGUMENTS[name]).validate(arguments)


def test_required() -> None:
    called, lengths = set(), set()
    for run in range(60):
        of = model(KINDS[run % 3])
        calls = json.loads(answer(of, of.grammar(tools=LISTED), run, patience=60))
        lengths.add(len(calls))
        for call in calls:
            assert list(call) == ["name", "parameters"]
            called.add(call["name"])
            check(call["name"], call["parameters"])
    assert called == set(ARGUMENTS) and max(lengths) > 1 and min(lengths) == 1


def test_one_call_at_a_time() -> None:
    for run in range(30):
        of = model(KINDS[run % 3])
        (call,) = json.loads(answer(of, of.grammar(tools=LISTED, parallel=False), run))
        check(call["name"], call["parameters"])
    of = model("demo")
    two = '[{"name":"ping","parameters":{}},{"name":"ping","parameters":{}}]'
    assert accepts(of, of.grammar(tools=LISTED), two)
    assert not accepts(of, of.grammar(tools=LISTED, parallel=False), two)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_named(name: str) -> None:
    for run in range(6):
        of = model(KINDS[run % 3])
        check(name, json.loads(answer(of, of.grammar(tools=LISTED, named=name), run)))


def test_texts() -> None:
    of = model("demo")
    grammar = of.grammar(tools=LISTED)
    assert accepts(of, grammar, '[{"name": "ping", "parameters": {}}, {"name":"nest","parameters":{"inner":null}}]')
    for text in (
        "[]",
        '[{"name":"pong","parameters":{}}]',
        '[{"name":"ping","parameters":{"a":1}}]',
        '[{"name":"ping"}]',
    ):
        assert not accepts(of, grammar, text)


def test_references_without_their_hash() -> None:
    """As litellm sends them to servers of Anthropic's API."""
    of = model("demo")
    parameters = made({"event": {"$ref": "/$defs/Event"}}) | {"$defs": {"Event": {"type": "integer"}}}
    tools = [{"name": "note", "parameters": parameters}]
    for constraint, text in (({"named": "note"}, '{"event":5}'), ({}, '[{"name":"note","parameters":{"event":5}}]')):
        grammar = of.grammar(tools=tools, **constraint)
        assert accepts(of, grammar, text) and not accepts(of, grammar, text.replace("5", '"a"'))


def test_references_beside_an_id() -> None:
    """In a copy they are not that id's any more. A property may be called so."""
    of = model("demo")
    parameters = made({"id": {"$ref": "#/$defs/Id"}, "$id": {"type": "integer"}})
    parameters |= {"$defs": {"Id": {"type": "integer"}}, "$id": "https://example.com/note", "id": "note"}
    parameters |= {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    tools = [{"name": "note", "parameters": parameters}]
    text = '{"id":5,"$id":6}'
    for constraint, answer_ in (({"named": "note"}, text), ({}, f'[{{"name":"note","parameters":{text}}}]')):
        grammar = of.grammar(tools=tools, **constraint)
        assert accepts(of, grammar, answer_) and not accepts(of, grammar, answer_.replace("5", '"a"'))


def test_refusals() -> None:
    of = model("demo")
    with pytest.raises(GrammarError, match="no tool named 'pong'"):
        of.grammar(tools=LISTED, named="pong")
    with pytest.raises(GrammarError, match="empty"):
        of.grammar(tools=[])
    with pytest.raises(GrammarError, match="contains"):
        of.grammar(tools=[{"name": "f", "parameters": made({"x": {"type": "array", "contains": {}}})}])
