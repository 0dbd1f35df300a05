"""What configs of several formats have in common: one value of a few, groups, names of layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..values import Values
from .stored import WHOLE, StoredSpec

SCALAR = StoredSpec((1,), optional=True, also=((),))
INPUT_SCALES = (("input_scale", SCALAR), ("activation_scale", SCALAR))  # of activations: they stay floats here
# of KV memory: it has --kv-cache-dtype
KV_SCALES = re.compile(r".*\.((kv?|[qv])_scale|[kv]_proj\.(output|[kv])_scale)")

T = TypeVar("T")


def one_of(given: Values, key: str, known: tuple[T, ...], absent: T | None = None) -> T:
    """The value, which must be one of those."""
    value = absent if given[key] is None else given[key]
    for item in known:
        if type(item) is type(value) and item == value:
            return item
    raise given.wrong(key, " or ".join(str(item) for item in known))


def group_of(given: Values, absent: int | None = None) -> int:
    """The columns of a group; -1 are all."""
    size = given.whole("group_size", -1)
    if size is None and absent is not None:
        return absent
    if size is None or size == 0:
        raise given.wrong("group_size", "-1 or a whole number from 1")
    return WHOLE if size == -1 else size


def listed(names: tuple[str, ...]) -> Callable[[str], bool]:
    """Does such a list name a layer, or what it is a part of? In it a * stands for anything, also for the rest of a
    name (layers.6* means layers.60 too); behind a dot, for all parts of what stands before it.
    """
    parts = [name.removeprefix("*.").removesuffix(".*").strip(".") for name in names]
    plain = frozenset(part for part in parts if "*" not in part)
    wild = "|".join(re.escape(part).replace(r"\*", ".*") for part in parts if "*" in part)
    pattern = re.compile(rf"(?:.*\.)?(?:{wild})(?:\..*)?") if wild else None

    def names_it(name: str) -> bool:
        if any(part in plain for own in as_part(name) for part in _parts(own)):
            return True
        return pattern is not None and any(pattern.fullmatch(own) for own in as_part(name))

    return names_it


def as_part(name: str) -> Iterator[str]:
    """A layer's name, and those that lists may have for it where its model is the text part of another."""
    yield name
    inner = name.removeprefix("model.")
    yield from (f"language_model.{name}", f"model.language_model.{inner}", f"model.text_model.{inner}")
    if inner != name:
        yield f"language_model.{inner}"


def _parts(name: str) -> Iterator[str]:
    """`a.b`, `a` and `b` of `a.b`."""
    words = name.split(".")
    for first in range(len(words)):
        for end in range(first + 1, len(words) + 1):
            yield ".".join(words[first:end])


def compiled(given: Values, key: str, pattern: str) -> re.Pattern[str]:
    """A pattern of names; +: and -: before it are gptqmodel's, re: is compressed-tensors'."""
    try:
        return re.compile(pattern.removeprefix("-:").removeprefix("+:").removeprefix("re:"))
    except re.error:
        raise given.wrong(key, f"patterns of names, and {pattern!r} is none") from None
