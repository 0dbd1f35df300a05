"""A client's JSON schema as llguidance shall read it: within limits, whitespace bounded, its references in place.

Whitespace in JSON is one space, or a line break with its indentation: what printers of JSON write. A model that has
lost its way likes to fill the rest of its answer with blanks; here the next token must go on with the value.

Leaf module: plain values, and which patterns llguidance reads.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from llguidance import LLMatcher

from .complexity import too_costly

MAX_DEPTH = 64  # objects and arrays within one another; llguidance's own reader ends at about 120
MAX_PATTERN = 4096  # characters of a regular expression
MAX_REPEAT = 10_000  # in `{n,m}`
MAX_MULTIPLE = 20_000  # numbers that are multiples of n take an automaton of n states: a million needs seconds
MAX_STATES = 50_000  # of all these automata
WHITESPACE = r" |\n[ \t]{0,40}"
PLAIN = frozenset({"const", "default", "enum", "example", "examples"})  # keywords whose values are no schemas
NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})  # name → schema
NAMES, OTHERS = {"properties", "patternProperties"}, {"additionalProperties", "unevaluatedProperties"}
COMBINING = frozenset("$dynamicRef allOf dependentSchemas if not unevaluatedProperties".split())
BRANCHES = frozenset({"$ref", "anyOf", "oneOf"})  # which combine schemas where they stand beside properties
ASKING = frozenset({"minProperties", "patternProperties", "propertyNames"})  # for properties without naming them
# What the standard names but llguidance does not know. Other names of formats are remarks, as in OpenAPI's "int32".
UNSUPPORTED = frozenset(
    "idn-email idn-hostname iri iri-reference json-pointer regex relative-json-pointer".split()
    + ["uri-reference", "uri-template"]
)
ALTERNATIVES = re.compile(r"\^([\w-]+|\([\w-]+(\|[\w-]+)*\))\$")  # a pattern of names that are written out
LEFT_OUT = "x-pattern"  # in the place of a pattern that is not enforced; the keyword means nothing
SUPPORTED = frozenset("date date-time duration email hostname ipv4 ipv6 time uri uuid".split())


class GrammarError(ValueError):
    """Of what a client asks for no grammar can be made; the text is for the client."""


def schema_grammar(schema: Any, strict: bool, blanks: str | None, closed: bool) -> dict[str, Any]:
    """A schema's object with our options. Not strict: what llguidance cannot enforce is left out, not refused.

    `blanks`: a regular expression of those between the parts of JSON, empty for none, None for those that printers
    write. `closed`: see adapt_schema.
    """
    if blanks is not None:
        check_pattern(blanks)
    adapted = adapt_schema(schema, closed=closed, strict=strict)
    if adapted is False:
        raise GrammarError("the JSON schema `false` allows nothing")
    if (reason := too_costly(adapted)) is not None:
        raise GrammarError(f"the JSON schema is too complex: {reason}")
    spaces = {"whitespace_flexible": False} if blanks == "" else {"whitespace_pattern": blanks or WHITESPACE}
    return ({} if adapted is True else adapted) | {"x-guidance": {**spaces, "lenient": not strict}}


def adapt_schema(schema: Any, place: str = "#", closed: bool = False, strict: bool = True) -> Any:
    """A copy for `place` (a JSON pointer) of a larger schema: references go on pointing to the same things.

    Objects get no properties beside those that are named, where nothing is said of others: models that are allowed to
    invent some do. `closed`: also where the schema combines others, which might name more, or asks for such.

    Patterns that llguidance cannot read are left out where a format stands beside them, and all, those of names among
    them, if it is not `strict`.
    """
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"a JSON schema is an object, not {type(schema).__name__}")
    return _Reader(place, closed, strict, schema).schema(schema, 0)


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    rest = [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            yield value
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def _combines(schema: Any) -> bool:
    """Might an object have to fulfil several schemas at once?"""
    return any(one.keys() & COMBINING or ("properties" in one and one.keys() & BRANCHES) for one in _objects(schema))


def _refers_to_names(schema: Any) -> bool:
    """Is what is said of a property said elsewhere, too?"""
    return any("/properties/" in str(one.get("$ref")) for one in _objects(schema))


def check_pattern(pattern: str) -> None:
    """GrammarError for a regular expression that is too long, or repeats something too often."""
    if len(pattern) > MAX_PATTERN:
        raise GrammarError(f"a regular expression has {len(pattern)} characters; {MAX_PATTERN} are allowed")
    check_repeats(pattern)


def check_repeats(text: str, most: int = MAX_REPEAT) -> None:
    """GrammarError if a regular expression, or a rule of a grammar, repeats something too often."""
    for numbers in re.findall(r"(?<!\\[xuU])\{\s*(\d*\s*,?\s*\d*)\s*\}", text):
        if any(len(number) > 6 or int(number) > most for number in re.findall(r"\d+", numbers)):
            raise GrammarError(f"{{{numbers[:40]}}} repeats something more than {most} times")


class _Reader:
    def __init__(self, place: str, closed: bool, strict: bool, whole: Any) -> None:
        self.place = place
        self.closed = closed
        self.strict = strict
        self.combines = _combines(whole)
        self.joins_names = not _refers_to_names(whole)
        self.multiple = Fraction(1)
        self.states = 0

    def schema(self, value: Any, depth: int) -> Any:
        """Also lists of schemas, and whatever lies under keywords that nobody knows: references may point there."""
        if depth > MAX_DEPTH:
            raise GrammarError(f"the JSON schema is nested more than {MAX_DEPTH} deep")
        if isinstance(value, list):
            return [self.schema(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        made = {key: self._keyword(key, item, depth) for key, item in value.items() if not self._is_remark(key, item)}
        self._leave_out_pattern(made)
        if self.joins_names:
            _join_names(made)
        self._leave_out_names(made)
        if made.keys() & NAMES and not made.keys() & OTHERS and (self.closed or self._may_close(made)):
            made["additionalProperties"] = False
        return made

    def _may_close(self, schema: dict[str, Any]) -> bool:
        """Nothing in it, or around it, asks for properties that it does not name."""
        named, required = schema.get("properties"), schema.get("required", [])
        if self.combines or schema.keys() & ASKING or not isinstance(named, dict) or not isinstance(required, list):
            return False
        return all(isinstance(name, str) and name in named for name in required)

    def _keyword(self, key: str, value: Any, depth: int) -> Any:
        if key in PLAIN:
            return value
        if key in NAMED and isinstance(value, dict):
            if key == "patternProperties":
                for pattern in value:
                    check_pattern(pattern)
            return {name: self.schema(item, depth + 2) for name, item in value.items()}
        if key == "$ref" and isinstance(value, str) and value.startswith(("#", "/")):  # litellm drops the #
            return self.place + value.removeprefix("#")
        if key == "pattern" and isinstance(value, str):
            check_pattern(value)
        if key == "multipleOf" and isinstance(value, int | float) and math.isfinite(value) and value > 0:
            self._limit_multiple(Fraction(str(value)))
        return self.schema(value, depth + 1)

    def _limit_multiple(self, value: Fraction) -> None:
        """Of all multipleOf together: allOf may demand them of one number."""
        scale = math.lcm(self.multiple.denominator, value.denominator)
        self.multiple = Fraction(math.lcm(int(self.multiple * scale), int(value * scale)), scale)
        self.states += value.numerator
        if self.multiple.numerator > MAX_MULTIPLE or self.states > MAX_STATES:
            raise GrammarError(f"multipleOf, all of them together, goes beyond {MAX_MULTIPLE}")

    def _is_remark(self, key: str, value: Any) -> bool:
        """What says nothing about the value, and what llguidance would refuse, or look for references in."""
        match key:
            case "format":
                return isinstance(value, str) and value not in SUPPORTED | UNSUPPORTED
            case "propertyNames":  # zod's records
                return bool(value == {"type": "string"})
            case "$id" | "id":  # of a copy, whose references are those of the whole
                return self.place != "#" and isinstance(value, str)
        return False

    def _leave_out_pattern(self, schema: dict[str, Any]) -> None:
        pattern, has_format = schema.get("pattern"), schema.get("format") in SUPPORTED
        if not isinstance(pattern, str) or (self.strict and not has_format) or _is_readable(pattern):
            return
        del schema["pattern"]
        if not has_format:
            schema[LEFT_OUT] = pattern

    def _leave_out_names(self, schema: dict[str, Any]) -> None:
        """The same with patterns of names: any name may then have what one that matches them has."""
        named, others = schema.get("patternProperties"), schema.get("additionalProperties", True)
        left_out = [] if self.strict or not isinstance(named, dict) else [one for one in named if not _is_readable(one)]
        if not left_out or not isinstance(named, dict):
            return
        values = [one for one in (others, *(named.pop(pattern) for pattern in left_out)) if one is not False]
        allowed: dict[str, Any] = {} if others is True else {"anyOf": values}
        schema["additionalProperties"] = bool(values) and allowed | {LEFT_OUT: ", ".join(left_out)}


def _join_names(schema: dict[str, Any]) -> None:
    """A pattern that fits names of `properties` alone says more of these: llguidance would let a comma begin another
    name, and there is none.
    """
    patterns, named = schema.get("patternProperties"), schema.get("properties")
    if not isinstance(patterns, dict) or not isinstance(named, dict):
        return
    for pattern in [one for one in patterns if ALTERNATIVES.fullmatch(one)]:
        if (names := set(pattern[1:-1].strip("()").split("|"))) <= named.keys():
            value = patterns.pop(pattern)
            named.update({name: {"allOf": [named[name], value]} for name in names})
    if not patterns:
        del schema["patternProperties"]


def _is_readable(pattern: str) -> bool:
    """Are there automata for it? There are none for look-around and back-references."""
    schema = json.dumps({"grammars": [{"json_schema": {"type": "string", "pattern": pattern}}]})
    return not LLMatcher.validate_grammar(schema)
