"""Values in a model's text as JSON text: strings to be read, and values that only a schema tells the type of."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from .json_scan import mended

_NAMES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}  # templates print them so, models copy them
_NESTED = {"object", "array", "null"}  # models write these as Python does, with single quotes
_IMPLY = {"properties": "object", "additionalProperties": "object", "items": "array"}  # by words of a schema
_UNESCAPED = re.compile(r"\\.|[\r\n\0]", re.DOTALL)  # what no literal has; behind a backslash it is part of one
_DIGITS = 300  # of an integer: longer ones are texts, not numbers
_MEMBERS = 5_000  # of a literal that is no string: to read one takes Python 20 us for each
_NUMBERS = {"integer", "number"}


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
    said = [kinds(one, schema) for one in properties(schema).get(name, ())]
    return frozenset[str]().union(*said) if all(said) else frozenset()


def properties(schema: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What a schema of an object says of each of its properties: it, what it refers to, and its alternatives."""
    found: dict[str, list[Any]] = {}
    for one in _behind(schema, schema, lambda one: isinstance(one.get("properties"), Mapping), beside=True):
        if isinstance(one, Mapping) and isinstance(own := one.get("properties"), Mapping):
            for name, said in own.items():
                found.setdefault(name, []).append(said)
    return found


def inner(schema: Any, root: Mapping[str, Any], name: str) -> Any:
    """The part of a schema that is about a property of this name, a list's items or a map's values; None: none is."""
    parts = [one for one in _behind(schema, root, _is_inner) if isinstance(one, Mapping)]
    for one in parts:
        if isinstance(properties := one.get("properties"), Mapping) and name in properties:
            return properties[name]
    return next((one[word] for word in ("items", "additionalProperties") for one in parts if word in one), None)


def kinds(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The types that a part of the schema `root` gives; empty where it says nothing."""
    said = [_own_kinds(one) for one in _behind(schema, root, _own_kinds)]
    return frozenset[str]().union(*said) if all(said) else frozenset()


def _is_inner(schema: Mapping[str, Any]) -> bool:
    return not schema.keys().isdisjoint(_IMPLY)


def _own_kinds(schema: Any) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return frozenset()
    said = schema.get("type")
    if said is not None:
        kinds_said = [said] if isinstance(said, str) else said if isinstance(said, list) else []
        return frozenset(one for one in kinds_said if isinstance(one, str))
    if "const" in schema or isinstance(schema.get("enum"), list):
        return frozenset(_NAMES.get(type(one), "object") for one in schema.get("enum", [schema.get("const")]))
    return frozenset(kind for word, kind in _IMPLY.items() if word in schema)


def _behind(
    schema: Any, root: Mapping[str, Any], says: Callable[[Mapping[str, Any]], object], beside: bool = False
) -> list[Any]:
    """A schema, or what its references and alternatives come to: each once, up to those that say it themselves, or with
    what stands `beside` that.
    """
    found, seen, open_ones = [], set[int](), [schema]
    while open_ones:
        one = open_ones.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Mapping) and isinstance(reference := one.get("$ref"), str):
            open_ones.append(_referred(reference, root))
        elif isinstance(one, Mapping) and (beside or not says(one)) and (several := _alternatives(one)):
            open_ones += reversed(several)
            found += [one] if says(one) else []
        else:
            found.append(one)
    return found


def _alternatives(schema: Mapping[str, Any]) -> list[Any]:
    return [one for word in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(word), list) for one in schema[word]]


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """What "#/$defs/Name" or "#" stands for; None where that is not in this schema."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
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
        said = _in_python(stripped) if wanted <= _NESTED else _integer(stripped, wanted)
        return f'"{quoted(text)}"' if said is None else said
    kind = _NAMES.get(type(value), "object")
    if "string" in wanted and not (kind != "string" and (kind in wanted or (kind == "integer" and "number" in wanted))):
        return f'"{quoted(text)}"'
    return stripped


def _integer(text: str, wanted: frozenset[str]) -> str | None:
    """One with zeros or a plus before it, which JSON does not know; None where it is none, or may be a string."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if "string" in wanted or not wanted & _NUMBERS or not (digits.isascii() and digits.isdigit()):
        return None
    digits = digits.lstrip("0") or "0"
    return text[: text[0] == "-"] + digits if len(digits) <= _DIGITS else None


def python_value(text: str, wanted: frozenset[str] = frozenset()) -> str:
    """A Python literal as JSON text, also where lines end or zeros stand in a string. Words of JSON stand for
    themselves; what is neither is an integer with zeros before it, or else a string.
    """
    stripped = text.strip()
    for literal in (stripped, _UNESCAPED.sub(_escaped, stripped)):
        if (said := _in_python(literal)) is not None:
            return said
    try:
        parsed(stripped)
    except ValueError:
        return _integer(stripped, wanted or frozenset(_NUMBERS)) or f'"{quoted(stripped)}"'
    return stripped


def _escaped(found: re.Match[str]) -> str:
    return {"\n": r"\n", "\r": r"\r", "\0": r"\x00"}.get(found[0], found[0])


class _SetsAsLists(ast.NodeTransformer):
    """JSON knows no sets, and a set's own order is another in each process."""

    def visit_Set(self, node: ast.Set) -> ast.List:
        self.generic_visit(node)
        return ast.List(node.elts, ast.Load())


def _in_python(text: str) -> str | None:
    """A Python literal as JSON text; None where it is none, is too large, or JSON cannot say it."""
    if text[:1] not in ("'", '"') and text.count(",") > _MEMBERS:
        return None
    try:
        tree = ast.parse(text.lstrip(" \t"), mode="eval")
        value = ast.literal_eval(_SetsAsLists().visit(tree) if "{" in text else tree)
        said = mended(json.dumps(value, ensure_ascii=False) + " ")  # Infinity stands there for 1e999
        return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of characters put together
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
