"""Formats with two tags for each argument, one for its key and one for its value: GLM's, and what is built like it."""

from __future__ import annotations

from typing import ClassVar

from ..base import Broken, Steps, dropped
from .json_calls import name_char
from .tagged import TaggedCalls

ANYTHING = frozenset({"object", "array", "string"})  # what values without a type are: JSON, or else text


class Glm45(TaggedCalls):
    """<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>"""

    begins: ClassVar[tuple[str, ...]] = ("<tool_call>",)  # of one call
    overs: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    behind_name: ClassVar[tuple[str, ...]] = ()
    key_begins: ClassVar[tuple[str, ...]] = ("<arg_key>",)
    key_ends: ClassVar[tuple[str, ...]] = ("</arg_key>",)
    value_begins: ClassVar[tuple[str, ...]] = ("<arg_value>",)
    value_ends: ClassVar[tuple[str, ...]] = ("</arg_value>",)
    starts = begins
    closers = overs

    def _call(self, marker: str) -> Steps[None]:
        yield from self._space()
        if marker not in self.begins:
            yield from self._expect(*self.begins)
            yield from self._space()
        name = yield from self._run_of(name_char)
        yield from self._space()
        found = yield from self._expect(*self.key_begins, *self.overs, *self.behind_name)
        if not name:
            raise Broken
        self._open_object(name)
        if found in self.behind_name:
            found = yield from self._next()
        while found in self.key_begins:
            key: list[str] = []
            if self.key_ends:
                yield from self._until(self.key_ends, key.append)
            sink = dropped if self.key_ends else key.append  # else the value's beginning ends the key
            found = yield from self._until((*self.value_begins, *self.overs, *self.begins), sink)
            if found in self.value_begins:
                yield from self._argument("".join(key).strip(), self.value_ends)
                found = yield from self._next()
        self._close_object()
        self._closers.difference_update(self.overs)
        self._begins_again(found)

    def _next(self) -> Steps[str]:
        return (yield from self._until((*self.key_begins, *self.overs, *self.begins), dropped))

    def _types(self, key: str) -> frozenset[str]:
        return super()._types(key) or (ANYTHING if key in self._known else frozenset())


def _both(tag: str) -> tuple[str, ...]:
    """As Hy3's tokenizer has it, and as that of its preview had."""
    return f"{tag[:-1]}:opensource>", tag


class HunyuanV3(Glm45):
    """<tool_calls><tool_call>name<tool_sep> and arguments as GLM's</tool_call></tool_calls>, all tags with a suffix."""

    begins, overs, behind_name = _both("<tool_call>"), _both("</tool_call>"), _both("<tool_sep>")
    key_begins, key_ends = _both("<arg_key>"), _both("</arg_key>")
    value_begins, value_ends = _both("<arg_value>"), _both("</arg_value>")
    starts = (*_both("<tool_calls>"), *begins)
    closers = (*overs, *_both("</tool_calls>"))


class SolarOpen2(Glm45):
    """<|tool_call:start|>name and <|tool_arg:start|>key<|tool_arg:value|>value<|tool_arg:end|> in it."""

    begins, overs = ("<|tool_call:start|>",), ("<|tool_call:end|>",)
    key_begins, key_ends = ("<|tool_arg:start|>",), ()
    value_begins, value_ends = ("<|tool_arg:value|>",), ("<|tool_arg:end|>",)
    starts, closers = begins, overs
