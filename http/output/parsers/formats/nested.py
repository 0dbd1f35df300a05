"""MiniMax-M3's calls: a tag for each argument and for each member of it, all behind one marker that no text has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..base import Broken, Steps, dropped
from ..values import inner, kinds, quoted, typed
from .json_calls import name_char
from .tagged import TaggedCalls

MARK = "]<]minimax[>["
TAG, CLOSED = f"{MARK}<", f"{MARK}</"
ITEM = "item"  # the tag of a list's members
CALLS = ("tool_call", "invoke")  # no members: in a value they break it
EMPTY = {"array": "[]", "object": "{}"}
MAX_DEPTH = 32


class MinimaxM3(TaggedCalls):
    """<tool_call><invoke name="name"><key>value</key><list><item>value</item></list></invoke></tool_call>"""

    starts = (f"{TAG}tool_call>", f"{TAG}invoke name=")
    closers = ends = (f"{CLOSED}tool_call>",)

    def _call(self, marker: str) -> Steps[None]:
        if marker == self.starts[0]:
            yield from self._space()
            yield from self._expect(self.starts[1])
        self._open_object((yield from self._name()))
        while (key := (yield from self._tag())) is not None:
            if key == "invoke":  # another call in one whose end the model has forgotten
                self._close_object()
                yield from self._expect(" name=")
                self._open_object((yield from self._name()))
            elif key != "tool_call":
                yield from self._member(key)
        self._close_object()

    def _member(self, key: str) -> Steps[None]:
        """One argument, and its end."""
        self._arguments((", " if self._given else "{") + json.dumps(key, ensure_ascii=False) + ": ")
        self._held = []  # the value as the model wrote it, should it break
        known = self._schema.get("properties")
        schema = known.get(key) if isinstance(known, Mapping) else None
        if kinds(schema, self._schema) == {"string"}:
            self._arguments('"')
            yield from self._until((CLOSED,), lambda text: self._arguments(quoted(text)))
            self._arguments('"')
            yield from self._until((">",), dropped)
        else:
            self._arguments((yield from self._element(schema, 0)))
        self._held = None

    def _tag(self) -> Steps[str | None]:
        yield from self._space()
        yield from self._expect(TAG)
        return (yield from self._tag_name())

    def _tag_name(self) -> Steps[str | None]:
        """The name in a tag that has begun, up to its end if nothing else is in it; None for a tag that closes."""
        closes = (yield from self._char()) == "/"
        name = yield from self._run_of(name_char)  # with the slash, if there is one
        if name != "invoke":
            yield from self._expect(">")
        return None if closes else name

    def _element(self, schema: Any, depth: int) -> Steps[str]:
        """The JSON text of what stands in a tag: a value, or members in tags of their own. Its end is taken."""
        if depth == MAX_DEPTH:
            raise Broken
        text: list[str] = []
        yield from self._until((TAG,), text.append)
        wanted = kinds(schema, self._schema)
        tag = yield from self._tag_name()
        if tag is None:
            said = "".join(text)
            return typed(said if said.strip() else EMPTY.get("".join(wanted - {"null"}), said), wanted)
        items = inner(schema, self._schema, ITEM) if "array" in wanted and "object" not in wanted else None
        is_one = tag != ITEM and items is not None and kinds(items, self._schema) == {"object"}
        members = yield from self._members(tag, items if is_one else schema, depth)
        if is_one:  # of a list of objects, without a tag of its own
            return f"[{_object(members)}]"
        if items is not None or (wanted != {"object"} and all(name == ITEM for name, _ in members)):
            return f"[{', '.join(value for _, value in members)}]"
        return _object(members)

    def _members(self, tag: str | None, schema: Any, depth: int) -> Steps[list[tuple[str, str]]]:
        """Those of an element, of which the first has begun."""
        members: list[tuple[str, str]] = []
        while tag is not None:
            if tag in CALLS:
                raise Broken
            members.append((tag, (yield from self._element(inner(schema, self._schema, tag), depth + 1))))
            tag = yield from self._tag()
        return members


def _object(members: list[tuple[str, str]]) -> str:
    """What stands under one name several times is a list."""
    named: dict[str, list[str]] = {}
    for name, value in members:
        named.setdefault(name, []).append(value)
    said = {name: values[0] if len(values) == 1 else f"[{', '.join(values)}]" for name, values in named.items()}
    return f"{{{', '.join(f'{json.dumps(name, ensure_ascii=False)}: {value}' for name, value in said.items())}}}"
