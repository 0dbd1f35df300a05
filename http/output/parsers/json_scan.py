"""One JSON value in a text that comes in cuts: where it ends, without building it.

Strict about structure, lenient about what models do to strings and words: of a line break in a string, an escape that
JSON has not, half of a character, and Python's True, None or Infinity it makes JSON. All else goes to the client as it
stands.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[-+.\w]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORDS = {
    **{"True": "true", "False": "false", "None": "null"},
    **{"NaN": "null", "Infinity": "null", "-Infinity": "null"},  # as JSON.stringify; many a reader refuses 1e999
}
_UNKNOWN = "\\ufffd"  # in the place of half a character: texts in UTF-8 have none
_ESCAPED = '"\\/bfnrt'
_DIGITS = "0123456789abcdefABCDEF"


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
    CODE = auto()  # the digits behind \\u


class JsonScan:
    """How far a value has come. At its end `done`; `broken` where no JSON value goes on so."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._state = _State.VALUE
        self._open: list[str] = []  # the ends of what is open
        self._is_key = False
        self._said: list[str] = []
        self._begun: str | None = None  # a word, as long as it may become one of Python's; the digits of a code
        self._half = ""  # the first of two codes that are one character

    def push(self, text: str, at: int) -> int:
        """How far the text from `at` on belongs to the value."""
        while at < len(text) and not (self.done or self.broken):
            at = self._step(text, at)
        return at

    def take(self) -> str:
        """What has come since the last time, as JSON; of an escape or a word that has begun only when it is clear."""
        said = "".join(self._said)
        self._said.clear()
        return said

    def _step(self, text: str, at: int) -> int:
        match self._state:
            case _State.STRING:
                return self._in_string(text, at)
            case _State.ESCAPE:
                return self._escape(text[at], at)
            case _State.CODE:
                return self._code(text[at], at)
            case _State.WORD:
                return self._in_word(text, at)
        end = _end(_SPACE, text, at)
        if end == at:
            self.broken = not self._mark(text[at])
            end = at if self.broken or self._is_word() else at + 1
        self._said.append(text[at:end])
        return end

    def _is_word(self) -> bool:
        return self._state is _State.WORD

    def _in_word(self, text: str, at: int) -> int:
        end = _end(_WORD, text, at)
        word = text[at:end]
        if self._begun is not None:
            self._begun += word
            if end == len(text) and any(one.startswith(self._begun) for one in _WORDS):
                return end
            word, self._begun = _WORDS.get(self._begun, self._begun), None
        self._said.append(word)
        if end < len(text):
            self._value_ends()
        return end

    def _in_string(self, text: str, at: int) -> int:
        if text[at] != "\\":
            self._give_up_half()
        end = _end(_PLAIN, text, at)
        self._said.append(text[at:end])
        if end == len(text):
            return end
        char = text[end]
        if char == "\\":
            self._state = _State.ESCAPE
            return end + 1
        self._said.append(char if char == '"' else json.dumps(char)[1:-1])
        if char == '"':
            self._string_ends()
        return end + 1

    def _escape(self, char: str, at: int) -> int:
        self._state = _State.STRING
        if char == "u":
            self._state, self._begun = _State.CODE, ""
            return at + 1
        self._give_up_half()
        if char == "'":
            self._said.append(char)
        elif char in _ESCAPED:
            self._said.append("\\" + char)
        else:
            self._said.append("\\\\")
            return at
        return at + 1

    def _code(self, char: str, at: int) -> int:
        digits = (self._begun or "") + (char if char in _DIGITS else "")
        self._begun = digits
        if char in _DIGITS and len(digits) < 4:
            return at + 1
        self._state = _State.STRING
        if char in _DIGITS:
            self._character(f"\\u{digits}", int(digits, 16))
            return at + 1
        self._give_up_half()
        self._said.append("\\\\u" + digits)
        return at

    def _character(self, escape: str, code: int) -> None:
        """One that is written as its code, or half of one."""
        is_second = 0xDC00 <= code <= 0xDFFF
        if is_second and self._half:
            self._said.append(self._half + escape)
            self._half = ""
            return
        self._give_up_half()
        if 0xD800 <= code <= 0xDBFF:
            self._half = escape
        else:
            self._said.append(_UNKNOWN if is_second else escape)

    def _give_up_half(self) -> None:
        """The other half does not come."""
        if self._half:
            self._said.append(_UNKNOWN)
            self._half = ""

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
                self._state, self._begun = _State.WORD, ""
            case _:
                return False
        return True

    def _string_ends(self) -> None:
        if self._is_key:
            self._state = _State.COLON
        else:
            self._value_ends()

    def _value_ends(self) -> None:
        self._is_key = False
        self._state = _State.NEXT
        self.done = not self._open


def mended(text: str) -> str:
    """The JSON value that a text is, or nearly is."""
    scan = JsonScan()
    scan.push(text, 0)
    return scan.take()


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
