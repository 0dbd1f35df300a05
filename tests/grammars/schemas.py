"""Fifty JSON schemas of the kinds that clients send."""

from __future__ import annotations

from typing import Any

STRING, INTEGER, NUMBER, NOTHING = ({"type": kind} for kind in ("string", "integer", "number", "null"))


def made(properties: dict[str, Any], *optional: str, **more: Any) -> dict[str, Any]:
    """An object of these properties and no others, as most clients demand."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    } | more


def array(items: Any, least: int = 0, most: int = 4) -> dict[str, Any]:
    """A short array."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


EXPLODES = made({"a": STRING | {"pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)", "minLength": 1, "maxLength": 5000}})
"""Compiles, and is too much for the lexer's work of one step as soon as the string has begun."""

ADDRESS = made({"street": STRING, "number": {"type": "integer", "minimum": 1, "maximum": 9999}, "town": STRING})
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": made({"value": INTEGER, "children": array({"$ref": "#/$defs/node"}, most=2)})},
}
LINKED = {
    "$defs": {"item": made({"id": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/item"}, NOTHING]}})},
    "anyOf": [{"$ref": "#/$defs/item"}, NOTHING],
}
EXPRESSION = {
    "$ref": "#/definitions/term",
    "definitions": {
        "term": {
            "anyOf": [
                NUMBER,
                made({"op": {"enum": ["+", "-", "*", "/"]}, "args": array({"$ref": "#/definitions/term"}, 2, 2)}),
            ]
        }
    },
}
SHAPES = {
    "oneOf": [
        made({"kind": {"const": "circle"}, "radius": NUMBER}),
        made({"kind": {"const": "square"}, "side": NUMBER}),
        made({"kind": {"const": "label"}, "text": STRING}),
    ]
}
LOGIN = {
    "title": "Login",
    "description": "As pydantic writes it",
    "type": "object",
    "properties": {
        "user": {"title": "User", "type": "string", "maxLength": 12},
        "age": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "Age"},
        "role": {"allOf": [{"$ref": "#/$defs/Role"}], "default": "guest"},
    },
    "required": ["user"],
    "additionalProperties": False,
    "$defs": {"Role": {"enum": ["admin", "guest"], "title": "Role", "type": "string"}},
}

SCHEMAS: dict[str, Any] = {
    "any object": {"type": "object"},
    "any value": {},
    "true": True,
    "string": STRING,
    "integer": INTEGER,
    "number": NUMBER,
    "boolean": {"type": "boolean"},
    "null": NOTHING,
    "flat object": made({"name": STRING, "age": INTEGER, "weight": NUMBER, "member": {"type": "boolean"}}),
    "nested objects": made({"id": INTEGER, "address": ADDRESS, "other": made({"inner": made({"x": NOTHING})})}),
    "all optional": made({"a": STRING, "b": INTEGER, "c": NOTHING}, "a", "b", "c"),
    "some optional": made({"first": INTEGER, "second": STRING, "third": INTEGER}, "second"),
    "required, not described": {"type": "object", "properties": {"a": INTEGER}, "required": ["z", "a"]},
    "open object": {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": STRING},
    "map of numbers": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,8}$": INTEGER},
        "additionalProperties": False,
    },
    "array of integers": array(INTEGER),
    "array, unbounded": {"type": "array", "items": {"type": "boolean"}},
    "array of at least three": array({"type": "integer", "minimum": -5, "maximum": 5}, 3, 5),
    "array of arrays": array(array(array(INTEGER, most=2), most=2), 1, 3),
    "array of objects": array(ADDRESS, 1, 2),
    "tuple": {
        "type": "array",
        "prefixItems": [STRING, INTEGER, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
    },
    "open tuple": {"type": "array", "prefixItems": [INTEGER, INTEGER], "minItems": 2, "items": STRING},
    "empty array": {"type": "array", "maxItems": 0},
    "enum of strings": {"enum": ["red", "green", "blue", "reddish"]},
    "enum of all kinds": {"enum": [1, "1", None, True, 2.5, [1, 2], {"a": None}]},
    "long enum": {"enum": [f"value-{number:04}" for number in range(2000)]},
    "unicode enum": {"enum": ["grün", "青い", "🙂", 'quo"te', "back\\slash", "new\nline"]},
    "const": {"const": {"type": "fixed", "values": [1, 2, 3]}},
    "unicode keys": made({"größe": INTEGER, "名前": STRING, 'a"b': NOTHING, "back\\slash": NOTHING}),
    "short strings": made({"code": {"type": "string", "minLength": 3, "maxLength": 5}}),
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "pattern without anchors": {"type": "string", "pattern": "[0-9]{4}", "maxLength": 20},
    "date": made({"day": {"type": "string", "format": "date"}}),
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "email": {"type": "string", "format": "email"},
    "addresses": {"type": "array", "prefixItems": [{"format": "ipv4"}, {"format": "ipv6"}], "items": False}
    | {"prefixItems": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}], "minItems": 2},
    "remarks": made({"id": {"type": "integer", "format": "int32"}, "path": {"type": "string", "format": "file-path"}}),
    "bounds": {"type": "integer", "minimum": -17, "maximum": 1234},
    "exclusive bounds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0},
    "nullable": made({"name": {"type": ["string", "null"]}, "size": {"anyOf": [INTEGER, NOTHING]}}),
    "any of": {"anyOf": [made({"a": INTEGER}), made({"b": STRING, "c": NUMBER}), array(NOTHING)]},
    "one of, by kind": SHAPES,
    "all of": {"allOf": [{"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}, {"required": ["b"]}]},
    "tree": TREE,
    "linked list": LINKED,
    "expression": EXPRESSION,
    "itself": made({"name": STRING, "parent": {"anyOf": [{"$ref": "#"}, NOTHING]}}),
    "pydantic": LOGIN,
}
