"""Values in a model's text as JSON text: strings to be read, and values that only a schema tells the type of."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, NoReturn

_NAMES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}  # templates print them so, models copy them
_NESTED = {"object", "array", "null"}  # models write these as Python does, with single quotes
_IMPLY = {"properties": "object", "additionalProperties": "object", "items": "array"}  # by words of a schema
_MAX_REFERENCES = 8  # from one schema to the next


def encodable(text: str) -> bool:
    """Can it be said in UTF-8? A lone surrogate from an escape cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def parsed(text: str) -> Any:
    """The value of a JSON text; ValueError where it is none."""
    try:
        return json.loads(text, parse_constant=_refused)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def quoted(text: str) -> str:
    """Text as it stands in a JSON string, without the quotes: pieces of it may be joined."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def string(raw: str) -> str | None:
    """What a JSON string says; None where the text is none, or cannot be said in UTF-8."""
    try:
        value = json.loads(raw, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) and encodable(value) else None


def types(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """The types that a schema of an object gives to one of its properties; empty where it says nothing."""
    properties = schema.get("properties")
    return kinds(properties.get(name), schema) if isinstance(properties, Mapping) else frozenset()


def inner(schema: Any, root: Mapping[str, Any], name: str) -> Any:
    """The part of a schema that is about a property of this name, else about a list's items; None: none is."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return None
        if not isinstance(reference := schema.get("$ref"), str):
            break
        schema = _referred(reference, root)
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else schema.get("items")


def kinds(schema: Any, root: Mapping[str, Any], references: int = 0) -> frozenset[str]:
    """The types that a part of the schema `root` gives; empty where it says nothing."""
    if not isinstance(schema, Mapping) or references > _MAX_REFERENCES:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return kinds(_referred(reference, root), root, references + 1)
    said = schema.get("type")
    if said is not None:
        kinds_said = [said] if isinstance(said, str) else said if isinstance(said, list) else []
        return frozenset(one for one in kinds_said if isinstance(one, str))
    if "const" in schema or isinstance(schema.get("enum"), list):
        return frozenset(_NAMES.get(type(one), "object") for one in schema.get("enum", [schema.get("const")]))
    if implied := {kind for word, kind in _IMPLY.items() if word in schema}:
        return frozenset(implied)
    several_kinds = [
        kinds(one, root, references + 1)
        for word in ("anyOf", "oneOf", "allOf")
        if isinstance(several := schema.get(word), list)
        for one in several
    ]
    return frozenset[str]().union(*several_kinds) if all(several_kinds) else frozenset()


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """What "#/$defs/Name" or "#" stands for; None where that is not in this schema."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def typed(text: str, wanted: frozenset[str]) -> str:
    """A value's text as JSON, by the types that it may have: what is no JSON of them is a string; so is all without."""
    if not wanted:
        return f'"{quoted(text)}"'
    stripped = text.strip()
    stripped = _PYTHON_WORDS.get(stripped, stripped)
    try:
        value = parsed(stripped)
    except ValueError:
        said = _in_python(stripped) if wanted <= _NESTED else None
        return f'"{quoted(text)}"' if said is None else said
    kind = _NAMES.get(type(value), "object")
    if "string" in wanted and not (kind != "string" and (kind in wanted or (kind == "integer" and "number" in wanted))):
        return f'"{quoted(text)}"'
    return stripped


def python_value(text: str) -> str:
    """A Python literal as JSON text. Words of JSON stand for themselves; what is neither is a string."""
    stripped = text.strip()
    if (said := _in_python(stripped)) is not None:
        return said
    try:
        parsed(stripped)
    except ValueError:
        return f'"{quoted(stripped)}"'
    return stripped


def _in_python(text: str) -> str | None:
    """A Python literal as JSON text; None where it is none, or JSON cannot say it."""
    try:
        value = ast.literal_eval(text)
        said = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return said if encodable(said) else json.dumps(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
