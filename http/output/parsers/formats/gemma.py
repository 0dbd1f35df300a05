"""Calls of Gemma 4 and FunctionGemma: call:name{key:value}, with strings as they are, between marks of their own."""

from __future__ import annotations

import json

from ..base import Broken, Steps
from ..calls import CallReader, Schemas
from ..values import parsed, quoted, string
from .json_calls import name_char

MAX_DEPTH = 32
_WORDS = {"None": "null", "none": "null", "nil": "null", "True": "true", "False": "false"}
_ENDS_WORD = ",{}[]<"


class GemmaCalls(CallReader):
    """`quote` stands on both sides of a string. Arguments that are strings are streamed, others come whole."""

    def __init__(self, start: str, end: str, quote: str, schemas: Schemas | None = None) -> None:
        super().__init__(schemas)
        self.starts = (start,)
        self.closers = self.ends = (end,)
        self._quote = quote

    def _call(self, marker: str) -> Steps[None]:
        yield from self._space()
        yield from self._expect("call:", ":")  # models leave the word out
        name = yield from self._run_of(name_char)
        if not name or (yield from self._space()) != "{":
            raise Broken
        self._begin(name)
        self._held = []  # what breaks is given out as the model wrote it
        self._take(1)
        while (key := (yield from self._key())) is not None:
            self._arguments((", " if self._given else "{") + json.dumps(key, ensure_ascii=False) + ": ")
            yield from self._argument()
            self._held = []
        if self._given:
            self._arguments("}")
        self._close()

    def _argument(self) -> Steps[None]:
        self._held = []
        if (yield from self._is_quoted()):
            self._held = None
            self._arguments('"')
            yield from self._until((self._quote,), lambda text: self._arguments(quoted(text)))
            self._arguments('"')
        else:
            self._arguments((yield from self._value(0)))

    def _is_quoted(self) -> Steps[bool]:
        """Does a string begin here? Its quote is taken."""
        if (yield from self._space()) != self._quote[0]:
            return False
        yield from self._expect(self._quote)
        return True

    def _key(self) -> Steps[str | None]:
        """The next name in an object, up to its value; None at the object's end, which is taken."""
        while (yield from self._space()) == ",":
            self._take(1)
        if self._text[self._at] == "}":
            self._take(1)
            return None
        key: list[str] = []
        if (yield from self._is_quoted()):
            yield from self._until((self._quote,), key.append)
        elif (yield from self._char()) == '"':
            yield from self._json(key.append)
            key = [string("".join(key)) or ""]
        else:
            key.append((yield from self._run_of(lambda char: char not in f":{_ENDS_WORD}")))
        yield from self._space()
        yield from self._expect(":")
        return "".join(key).strip()

    def _value(self, depth: int) -> Steps[str]:
        """A value as JSON text."""
        if depth == MAX_DEPTH:
            raise Broken
        if (yield from self._is_quoted()):
            said: list[str] = []
            yield from self._until((self._quote,), said.append)
            return f'"{quoted("".join(said))}"'
        match (yield from self._char()):
            case "{":
                return (yield from self._object(depth))
            case "[":
                return (yield from self._list(depth))
            case '"':
                text: list[str] = []
                yield from self._json(text.append)
                return "".join(text)
        word = yield from self._run_of(lambda char: char not in _ENDS_WORD)
        if word and (yield from self._is_quoted()):  # the model has forgotten the first quote
            return f'"{quoted(word)}"'
        return _word(word.strip())

    def _object(self, depth: int) -> Steps[str]:
        self._take(1)
        members: list[str] = []
        while (key := (yield from self._key())) is not None:
            value = yield from self._value(depth + 1)
            members.append(f"{json.dumps(key, ensure_ascii=False)}: {value}")
        return f"{{{', '.join(members)}}}"

    def _list(self, depth: int) -> Steps[str]:
        self._take(1)
        items: list[str] = []
        while (char := (yield from self._space())) != "]":
            if char == ",":
                self._take(1)
            elif char == "}":
                raise Broken
            else:
                items.append((yield from self._value(depth + 1)))
        self._take(1)
        return f"[{', '.join(items)}]"


def _word(text: str) -> str:
    """A value that is no string, or a string whose quotes the model has forgotten."""
    if not text:
        raise Broken
    text = _WORDS.get(text, text)
    try:
        parsed(text)
    except ValueError:
        return f'"{quoted(text)}"'
    return text
