"""Wishes that explode come to a GrammarError, or work: in bounded time, and not beyond the slot's memory."""

from __future__ import annotations

import contextlib
import random
import string
import zlib
from typing import Any

import msgspec
import pytest

from actorserve.actors.grammar.compiler import (
    MAX_PACKED,
    Constraint,
    GrammarError,
    Grammars,
    make_grammar,
    pack,
    unpack,
)
from actorserve.actors.grammar.trial import try_out
from tests.grammars.drawing import accepts, allowed, draw, model
from tests.grammars.schemas import EXPLODES, INTEGER, NOTHING, STRING, made


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = dict(STRING)
    for _ in range(depth):
        schema = made({"a": schema})
    return schema


def doubled(keyword: str, times: int) -> dict[str, Any]:
    """Each definition names the one before it twice: 2 ** times schemas in a few lines."""
    definitions: dict[str, Any] = {"d0": {"type": "object"}}
    for level in range(1, times):
        definitions[f"d{level}"] = {keyword: [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    return {"$ref": f"#/$defs/d{times - 1}", "$defs": definitions}


ALTERNATIVES = [
    {"anyOf": [made({f"p{at}{way}": INTEGER}, additionalProperties=True) for way in range(5)]} for at in range(8)
]
WORKING: dict[str, Any] = {
    "many objects in one": {"allOf": [made({f"p{n}": STRING}, additionalProperties=True) for n in range(50)]},
    "enums side by side": made({f"p{n}": {"type": "string", "enum": [f"v{m}" for m in range(200)]} for n in range(9)}),
    "a few patterns in one": {"allOf": [STRING | {"pattern": f"^[a-z]{{1,{n}}}$"} for n in range(14, 18)]},
    "long array": {"type": "array", "items": INTEGER, "minItems": 10**9},
    "longest array": {"type": "array", "items": INTEGER, "maxItems": 10**9},
    "long string": {"type": "string", "maxLength": 10**9},
    "many properties": {"type": "object", "properties": {f"p{number}": INTEGER for number in range(450)}},
    "deep": nested(20),
    "2 ** 30 of allOf": doubled("allOf", 30),
    "2 ** 30 of anyOf": doubled("anyOf", 30),
    "2 ** 30 of tuples": doubled("prefixItems", 30),
    "repeated pattern": {"type": "string", "pattern": "^(a{1,100}b{1,100}){1,100}$"},
    "backtracking pattern": {"type": "string", "pattern": "^(a|aa|a*)*b$"},
    "small steps": {"type": "number", "multipleOf": 1e-6},
}
VALUES = [{"enum": [f"v{number}" for number in range(first, first + 100)]} for first in range(3)]
TEXT = {"type": "string", "maxLength": 100_000, "pattern": "(((\\w)?|([^a]){3})){100,100}"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too deep": ({"json_schema": nested(40)}, "deep"),
    "too deep for anyone": ({"json_schema": "[" * 100_000}, "JSON"),
    "exponential": ({"json_schema": {"allOf": ALTERNATIVES}}, "too many alternatives"),
    "patterns that must all match": (
        {"json_schema": {"allOf": [STRING | {"pattern": f".*{number}"} for number in range(20)]}},
        "more than 8 patterns",
    ),
    "enums in each other": ({"json_schema": {"allOf": [*VALUES[:2], TEXT]}}, "too many alternatives"),
    "enums behind references": (
        {"json_schema": {"$ref": "#/$defs/a", "anyOf": [VALUES[0], TEXT], "$defs": {"a": VALUES[1]}}},
        "too many alternatives",
    ),
    "an enum beside a pattern": ({"json_schema": {"enum": list(range(300)), "pattern": "a"}}, "too many alternatives"),
    "patterns of keys": (
        {"json_schema": {"patternProperties": {f"^x{number}a*b": {} for number in range(100)}}},
        "more than 64 patterns",
    ),
    "itself": ({"json_schema": {"$ref": "#"}}, "no text"),
    "itself by others": ({"json_schema": doubled("allOf", 3) | {"allOf": [{"$ref": "#"}]}}, "ircular|no text"),
    "false": ({"json_schema": False}, "allows nothing"),
    "not a schema": ({"json_schema": "7"}, "object"),
    "multiples": ({"json_schema": INTEGER | {"multipleOf": 999_983}}, "multipleOf"),
    "common multiples": ({"json_schema": {"allOf": [INTEGER | {"multipleOf": n} for n in (1999, 1997)]}}, "multipleOf"),
    "many multiples": (
        {"json_schema": made({f"p{n}": INTEGER | {"multipleOf": 10_007} for n in range(9)})},
        "multipleOf",
    ),
    "unsatisfiable": ({"json_schema": {"type": "integer", "minimum": 3, "maximum": 2}}, "3"),
    "other files": ({"json_schema": {"$ref": "https://example.org/schema"}}, "example.org"),
    "missing": ({"json_schema": {"$ref": "#/$defs/missing"}}, "missing"),
    "unknown keyword": ({"json_schema": {"not": {"type": "string"}}}, "not"),
    "unsupported format": ({"json_schema": {"type": "string", "format": "iri"}}, "iri"),
    "too many properties": (
        {"json_schema": {"type": "object", "properties": {f"p{n}": NOTHING for n in range(2500)}}},
        "items",
    ),
    "long pattern": ({"json_schema": STRING | {"pattern": "ab?" * 2000}}, "6000 characters"),
    "long key pattern": ({"json_schema": {"patternProperties": {"a" * 5000: {}}}}, "5000 characters"),
    "long regex": ({"regex": "a" * 5000}, "5000 characters"),
    "repetition": ({"regex": "(ab){2,65535}"}, "more than 10000 times"),
    "what the lexer meets on its way": ({"regex": "a?(x{1000}){1000}"}, "too many"),
    "a pattern that explodes": ({"json_schema": EXPLODES}, "too many expressions"),
    "one behind free text": ({"json_schema": EXPLODES, "after": "</think>"}, "too many expressions"),
    "one in a tag": (
        {"structural_tag": {"structures": [{"begin": "<f>", "schema": EXPLODES, "end": "</f>"}], "triggers": ["<f>"]}},
        "too many expressions",
    ),
    "one behind many others": (
        {"json_schema": made({f"p{n}": INTEGER for n in range(80)} | {"z": EXPLODES["properties"]["a"]})},
        "too many expressions",
    ),
    "long repetition": ({"regex": "a{99999999999999999999}"}, "more than 10000 times"),
    "repetition in a schema": ({"json_schema": STRING | {"pattern": "a{20000}"}}, "more than 10000 times"),
    "repetition in Lark": ({"grammar": 'start: "a"{1,20000}'}, "more than 10000 times"),
    "intersection": ({"grammar": "start: A\nA: /a{1,5000}/ & ~/(.{500,2000}){2,}/"}, "more than 1000 times"),
    "many GBNF rules": ({"grammar": "\n".join(f"r{n} ::= r{n + 1}" for n in range(600))}, "500 rules"),
    "nothing": ({}, "exactly one"),
    "two constraints": ({"json_object": True, "regex": "a"}, "json_object, regex"),
    "unknown field": ({"jsno": {}}, "jsno"),
    "wrong type": ({"choice": "yes"}, "choice"),
    "no choice": ({"choice": []}, "empty"),
    "large": ({"choice": ["a" * 1000] * 200}, "131072"),
}


@pytest.mark.parametrize("name", WORKING)
def test_large_schemas_that_work(name: str) -> None:
    of = model("demo")
    matchers = of.matchers()
    matchers.place(0, of.grammar(json_schema=WORKING[name]))
    for _ in range(5):
        words = [word for word in allowed(matchers, 0).tolist() if word not in of.ends]
        if not words:
            assert allowed(matchers, 0).tolist() == sorted(of.ends)
            break
        matchers.advance(0, words[0])


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    constraint, reason = REFUSED[name]
    with pytest.raises(GrammarError, match=reason) as caught:
        model("demo").grammar(**constraint)
    assert len(str(caught.value)) <= 450 and "\n" not in str(caught.value)


def test_what_does_not_fit_into_shared_memory() -> None:
    chance = random.Random(1)
    words = ["".join(chance.choices(string.ascii_letters, k=30)) for _ in range(3000)]
    with pytest.raises(GrammarError, match=f"{MAX_PACKED} are allowed"):
        model("demo").grammar(choice=words)
    assert len(pack(make_grammar(Constraint(choice=words[:1000])))) < MAX_PACKED
    assert unpack(pack("grün")) == "grün"


def test_checks_by_themselves() -> None:
    of = model("demo")
    for constraint in (Constraint(json_object=True), Constraint(regex="(")):
        grammar = make_grammar(constraint)
        with pytest.raises(GrammarError, match="regex") if constraint.regex else contextlib.nullcontext():
            try_out(grammar, grammar, of.grammars.lltokenizer)
    with pytest.raises(zlib.error):
        unpack(b"no packed grammar")


def test_grammars_are_remembered() -> None:
    """Errors as well, the least used ones forgotten first."""
    of = model("byte level")
    grammars = Grammars(of.tokenizer, of.vocab_size, of.ends)
    good, bad = (msgspec.json.encode({"regex": pattern}) for pattern in ("a+", "("))
    made_first = grammars.make(good)
    with pytest.raises(GrammarError) as first:
        grammars.make(bad)
    assert grammars.make(good) is made_first
    with pytest.raises(GrammarError) as second:
        grammars.make(bad)
    assert str(first.value) == str(second.value)
    for number in range(63):
        grammars.make(msgspec.json.encode({"choice": [str(number)]}))
        grammars.make(good)
    assert len(grammars._cache) == 64 and grammars.make(good) is made_first and bad not in grammars._cache


def test_an_answer_that_is_cut_short_can_still_be_ended() -> None:
    """What works in principle for ever comes to its end when the model wants it to."""
    of = model("demo")
    matchers = of.matchers()
    matchers.place(0, of.grammar(json_schema=WORKING["many properties"]))
    text = of.text(draw(of, matchers, 0, 1))
    assert accepts(of, of.grammar(json_schema=WORKING["many properties"]), text)
