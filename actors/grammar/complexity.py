"""How much work a JSON schema's intersections are: llguidance goes through all pairs of alternatives, with no limit.

`allOf`, and keywords beside `$ref`, `anyOf` or `enum`, demand several things of one value. Estimated are the ways to
choose one alternative of each, and how many regular expressions must then hold together. Properties that several parts
of an allOf describe are not followed into: what explodes there meets the renderer's own deadline.

Leaf module: plain values only.
"""

from __future__ import annotations

import math
from typing import Any

MAX_WAYS = 2000  # alternatives
MAX_WAYS_OF_TEXT = 200  # where each must match expressions, too
MAX_EXPRESSIONS = 8  # that must hold together
MAX_KEY_PATTERNS = 64  # each is compared with each
LENGTHS = ("minLength", "maxLength")


def too_costly(schema: Any) -> str | None:
    """What is too much about a schema; None if nothing is."""
    judge = _Judge(schema)
    open_ones, keys = [schema], 0
    while open_ones:
        one = open_ones.pop()
        if isinstance(one, list):
            open_ones.extend(one)
        elif isinstance(one, dict):
            open_ones.extend(one.values())
            patterns = one.get("patternProperties")
            keys += len(patterns) if isinstance(patterns, dict) else 0
            if keys > MAX_KEY_PATTERNS:
                return f"patternProperties has more than {MAX_KEY_PATTERNS} patterns"
            if (reason := judge.judge(one)) is not None:
                return reason
    return None


class _Judge:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.known: dict[int, tuple[int, int]] = {}  # id of a schema → ways, expressions

    def judge(self, schema: dict[str, Any]) -> str | None:
        ways, expressions = self.cost(schema)
        if len(self._parts(schema)) + bool(_texts(schema)) < 2:
            return None  # one thing is demanded: nothing is intersected
        if ways > (MAX_WAYS_OF_TEXT if expressions else MAX_WAYS):
            return "allOf, or keywords beside $ref, anyOf and enum, combine too many alternatives"
        if expressions > MAX_EXPRESSIONS:
            return f"allOf, or keywords beside $ref, combine more than {MAX_EXPRESSIONS} patterns and formats"
        return None

    def cost(self, schema: Any) -> tuple[int, int]:
        """The ways through a schema, and the expressions that hold together in the worst of them."""
        if not isinstance(schema, dict):
            return 1, 0
        if id(schema) not in self.known:
            self.known[id(schema)] = (1, 0)  # while we are within it
            parts = self._parts(schema)
            ways = math.prod(ways for ways, _ in parts)
            expressions = sum(expressions for _, expressions in parts) + _texts(schema)
            self.known[id(schema)] = (min(ways, MAX_WAYS + 1), min(expressions, MAX_EXPRESSIONS + 1))
        return self.known[id(schema)]

    def _parts(self, schema: dict[str, Any]) -> list[tuple[int, int]]:
        """What is demanded together."""
        parts = []
        if isinstance(values := schema.get("enum"), list):
            parts.append((len(values), 0))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(some := schema.get(keyword), list) and some:
                costs = [self.cost(one) for one in some]
                parts.append((sum(ways for ways, _ in costs), max(texts for _, texts in costs)))
        if isinstance(every := schema.get("allOf"), list):
            parts += [self.cost(one) for one in every]
        if isinstance(reference := schema.get("$ref"), str):
            parts.append(self.cost(self._target(reference)))
        return parts

    def _target(self, reference: str) -> Any:
        """What a reference within the schema points to."""
        found = self.root
        for name in reference.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        return found


def _texts(schema: dict[str, Any]) -> int:
    """Expressions that a schema itself demands of a string."""
    named = [name for name in ("pattern", "format") if isinstance(schema.get(name), str)]
    return len(named) + any(isinstance(schema.get(name), int) for name in LENGTHS)
