"""Calls as Python has them: a list, [f(a=1, b="x"), g()], as Llama 3.2 and 4 and LFM2 write it, or lines of them."""

from __future__ import annotations

import json

from ..base import Broken, Steps
from ..calls import BLOCK
from ..values import python_value, types
from .json_calls import JsonCalls, name_char

_CLOSES = {"(": ")", "[": "]", "{": "}"}


class Pythonic(JsonCalls):
    """With <|python_start|> before it, or first in a line. An argument is given out when its value is whole. Calls may
    be JSON.
    """

    starts: tuple[str, ...] = ("<|python_start|>", "<|tool_call_start|>")
    bare = "["
    name_alone = False
    closers: tuple[str, ...] = ("<|python_end|>", "<|tool_call_end|>")
    ends: tuple[str, ...] = closers

    def _call(self, marker: str) -> Steps[None]:
        yield from self._space()
        yield from self._expect("[")
        if marker and (yield from self._space()) == "]":
            self._take(1)
            yield from self._space()
            yield from self._expect(*self.closers)
            self._held = []  # a list without a call says nothing
            return
        while (first := (yield from self._space())) != "]":
            yield from self._object() if first == "{" else self._one()
            if (yield from self._space()) == ",":
                self._take(1)
            elif self._text[self._at] != "]":
                raise Broken
        self._take(1)

    def _one(self) -> Steps[None]:
        name = yield from self._run_of(name_char)
        if not self._may_be(name):
            raise Broken
        yield from self._space()
        yield from self._expect("(")
        key = yield from self._key()
        self._begin(name)
        while key is not None:
            self._arguments((", " if self._given else "{") + json.dumps(key, ensure_ascii=False) + ": ")
            self._held = []
            value, end = yield from self._literal()
            self._arguments(python_value(value, types(self._schemas.get(name, {}), key)))
            self._held = []
            key = (yield from self._key()) if end == "," else None
        if self._given:
            self._arguments("}")
        self._close()

    def _key(self) -> Steps[str | None]:
        """The next argument's name, up to the value; None at the end of the call, which is taken."""
        if (yield from self._space()) == ")":
            self._take(1)
            return None
        key = yield from self._run_of(name_char)
        if not key.isidentifier():
            raise Broken
        yield from self._space()
        yield from self._expect("=")
        return key

    def _literal(self) -> Steps[tuple[str, str]]:
        """A literal's text, and the comma or bracket behind it, which is taken. What is held is the text so far."""
        taken: list[str] = []
        open_brackets: list[str] = []
        while True:
            char = yield from self._char()
            if not open_brackets and char in ",)":
                if not taken:
                    raise Broken
                return "".join(taken), self._take(1)
            taken.append(self._take(1))
            if char in _CLOSES:
                open_brackets.append(_CLOSES[char])
            elif char in "'\"":
                yield from self._quoted(char, taken)
            elif char in ")]}" and (not open_brackets or open_brackets.pop() != char):
                raise Broken

    def _quoted(self, quote: str, taken: list[str]) -> Steps[None]:
        """The rest of a string, with three quotes or with one."""
        if (yield from self._char()) != quote:
            yield from self._until_quote(quote, taken)
            return
        taken.append(self._take(1))
        if (yield from self._char()) == quote:
            taken.append(self._take(1))
            yield from self._until_quote(quote * 3, taken)

    def _until_quote(self, end: str, taken: list[str]) -> Steps[None]:
        while (found := (yield from self._until((end, "\\"), taken.append))) == "\\":
            yield from self._char()
            taken.append(found + self._take(1))
        taken.append(found)


class PythonLines(Pythonic):
    """<function_calls> and a call in each line, as OLMo 3 writes them."""

    starts = ("<function_calls>",)
    bare = ""
    closers: tuple[str, ...] = ("</function_calls>",)
    ends: tuple[str, ...] = closers

    def _call(self, marker: str) -> Steps[None]:
        while name_char((yield from self._space())):
            yield from self._one()


class ToolCode(PythonLines):
    """The same in a block of code, as Gemma 3 is asked to write it."""

    starts = (f"{BLOCK}tool_code",)
    closers = ()
    ends = (f"\n{BLOCK}",)

    def _call(self, marker: str) -> Steps[None]:
        yield from super()._call(marker)
        yield from self._end_of_block()
