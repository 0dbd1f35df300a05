"""One JSON value in a text that comes in cuts: where it ends, without building it.

Strict about structure and strings, lenient about words (True, NaN): what a model wrote goes to the client as it stands.
"""

from __future__ import annotations

import re
from enum import Enum, auto

_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[-+.\w]*")
_PLAIN = re.compile(r'[^"\\]*')


class _State(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()  # behind [
    KEY = auto()
    KEY_OR_END = auto()  # behind {
    COLON = auto()
    NEXT = auto()  # a comma, or the end of what is open
    WORD = auto()  # a number, true, false, null
    STRING = auto()
    ESCAPE = auto()


class JsonScan:
    """How far a value has come. At its end `done`; `broken` where no JSON value goes on so."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._state = _State.VALUE
        self._open: list[str] = []  # the ends of what is open
        self._is_key = False

    def push(self, text: str, at: int) -> int:
        """How far the text from `at` on belongs to the value."""
        while at < len(text) and not (self.done or self.broken):
            at = self._step(text, at)
        return at

    def _step(self, text: str, at: int) -> int:
        match self._state:
            case _State.STRING:
                return self._in_string(text, at)
            case _State.ESCAPE:
                self._state = _State.STRING
                return at + 1
            case _State.WORD:
                end = _end(_WORD, text, at)
                if end < len(text):
                    self._value_ends()
                return end
        end = _end(_SPACE, text, at)
        if end > at:
            return end
        self.broken = not self._mark(text[at])
        return at if self.broken or self._in_word() else at + 1

    def _in_word(self) -> bool:
        return self._state is _State.WORD

    def _in_string(self, text: str, at: int) -> int:
        end = _end(_PLAIN, text, at)
        if end == len(text):
            return end
        if text[end] == "\\":
            self._state = _State.ESCAPE
        elif self._is_key:
            self._state = _State.COLON
        else:
            self._value_ends()
        return end + 1

    def _mark(self, char: str) -> bool:
        """A character outside strings and words: may it stand here?"""
        state = self._state
        if state is _State.COLON:
            self._state = _State.VALUE
            return char == ":"
        if state in (_State.KEY, _State.KEY_OR_END) and char == '"':
            self._is_key = True
            self._state = _State.STRING
            return True
        if state in (_State.VALUE, _State.VALUE_OR_END) and self._value_begins(char):
            return True
        if state is _State.NEXT and char == ",":
            self._state = _State.KEY if self._open[-1] == "}" else _State.VALUE
            return True
        if state in (_State.NEXT, _State.KEY_OR_END, _State.VALUE_OR_END) and char == self._open[-1]:
            self._open.pop()
            self._value_ends()
            return True
        return False

    def _value_begins(self, char: str) -> bool:
        self._is_key = False
        match char:
            case "{":
                self._open.append("}")
                self._state = _State.KEY_OR_END
            case "[":
                self._open.append("]")
                self._state = _State.VALUE_OR_END
            case '"':
                self._state = _State.STRING
            case _ if _WORD.fullmatch(char):
                self._state = _State.WORD
            case _:
                return False
        return True

    def _value_ends(self) -> None:
        self._is_key = False
        self._state = _State.NEXT
        self.done = not self._open


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
