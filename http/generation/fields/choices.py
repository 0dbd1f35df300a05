"""Which values a field of a body may have, where there are only so many: for the 400 that refuses another one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from msgspec import inspect

STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")  # of a path
NO_VALUE = ("Invalid enum value", "Invalid value")  # the second of what tells structs apart


def choices(kind: type, reason: str, path: str) -> str:
    """What to put behind msgspec's reason: `; it must be left or right`, or nothing."""
    if not reason.startswith(NO_VALUE):
        return ""
    known = values_at(_type_of(kind), path)
    return f"; it must be {' or '.join(map(str, known))}" if known else ""


@cache
def _type_of(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def values_at(found: inspect.Type, path: str) -> list[object]:
    """Those that may stand at a place, such as `messages[0].role`."""
    places = [found]
    for step in STEP.findall(path):
        places = [inner for one in places for outer in _alternatives(one) for inner in _inside(outer, step)]
    ends = [end for one in places for end in _alternatives(one)]
    return [value for end in ends if isinstance(end, inspect.LiteralType) for value in end.values]


def _alternatives(found: inspect.Type) -> Iterator[inspect.Type]:
    """A union's members; anything else is its only one."""
    if isinstance(found, inspect.Metadata):
        yield from _alternatives(found.type)
    elif isinstance(found, inspect.UnionType):
        for one in found.types:
            yield from _alternatives(one)
    else:
        yield found


def _inside(found: inspect.Type, step: str) -> Iterator[inspect.Type]:
    if isinstance(found, inspect.StructType):
        yield from (field.type for field in found.fields if field.encode_name == step)
        if found.tag_field == step:
            yield inspect.LiteralType((found.tag,))
    elif isinstance(found, inspect.ListType) and step.startswith("["):
        yield found.item_type
    elif isinstance(found, inspect.DictType) and step.startswith("["):
        yield found.value_type
