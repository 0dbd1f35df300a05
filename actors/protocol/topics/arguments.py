"""A call's arguments as they come: what of them is the beginning of one JSON object, and what that object is so far.

Anthropic's clients parse arguments at every event, and break at text that is no JSON; and a call has its input as an
object, however it was cut. So text goes out up to where it leaves JSON, and the rest of the call is dropped. In the
object a number beyond all floats is null, as JSON.stringify has it: many a reader would refuse the whole answer for it.
Clients of OpenAI get arguments as the model wrote them, and send them back so: templates are given the same object of
them.
"""

from __future__ import annotations

import math
import re

PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')
SPACE = " \t\n\r"
DIGITS = "0123456789abcdefABCDEF"
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
NUMBER_BEGUN = re.compile(r"-|-?(?:0|[1-9]\d*)(?:\.\d*|(?:\.\d+)?(?:[eE][+-]?\d*)?)", re.ASCII)
WORDS = ("true", "false", "null")
PAIRS = {"{": "}", "[": "]"}
MAX_DEPTH, MAX_NUMBER = 100, 1000
BROKEN = -1


class ObjectText:
    """The beginning of a JSON object that a text is. A state takes one character (or more) and names the next one."""

    def __init__(self) -> None:
        self._taken: list[str] = []
        self._length = 0
        self._state = self._start
        self._closers: list[str] = []  # of the objects and arrays that are open
        self._token = ""  # a number or word that has begun, or the digits of an escape
        self._surrogate = False  # the first half of a pair was read
        self._key = False  # the string that is open is a key
        self._whole = (0, "{}")  # so much of the text, and this behind it, is an object
        self._beyond: list[tuple[int, int]] = []  # from where to where numbers stand that no float holds

    def feed(self, text: str) -> str:
        """What of this text goes on with the object."""
        if not self._length:
            text = text.lstrip(SPACE)
        position = 0
        while position < len(text):
            following = self._state(text, position)
            if following == BROKEN:
                self._state = self._over
                break
            position = following
            if self._state == self._after:
                self._note(self._length + position)
        taken = text[:position]
        self._taken.append(taken)
        self._length += position
        return taken

    def object(self) -> bytes:
        """The object so far: without a member that was cut."""
        length, closers = self._whole
        beyond = self._beyond
        if self._is_number():  # nothing says that more of it was to come
            length, closers = self._length, "".join(reversed(self._closers))
            beyond = beyond + self._beyond_floats(length)
        text = "".join(self._taken)[:length]
        for begin, end in reversed(beyond):
            text = f"{text[:begin]}null{text[end:]}"
        return (text + closers).encode()

    def _note(self, length: int) -> None:
        """So much of the text can be closed to an object."""
        self._whole = (length, "".join(reversed(self._closers)))

    def _is_number(self) -> bool:
        """Does the text end with a number?"""
        return self._state == self._number and NUMBER.fullmatch(self._token) is not None

    def _beyond_floats(self, end: int) -> list[tuple[int, int]]:
        """Where the number stands that ends here, if it is beyond all floats."""
        return [(end - len(self._token), end)] if math.isinf(float(self._token)) else []

    def _start(self, text: str, at: int) -> int:
        return self._open(text, at) if text[at] == "{" else BROKEN

    def _over(self, text: str, at: int) -> int:
        """The object is whole, or was left: nothing more is taken."""
        return BROKEN

    def _open(self, text: str, at: int) -> int:
        """An object or array begins; it is one that could be closed at once."""
        if len(self._closers) == MAX_DEPTH:
            return BROKEN
        self._closers.append(PAIRS[text[at]])
        self._note(self._length + at + 1)
        self._state = self._first
        return at + 1

    def _close(self, at: int) -> int:
        self._closers.pop()
        self._state = self._after
        if not self._closers:
            self._note(self._length + at + 1)
            self._state = self._over
        return at + 1

    def _first(self, text: str, at: int) -> int:
        """Behind the opening bracket."""
        if text[at] == self._closers[-1]:
            return self._close(at)
        return self._member(text, at) if self._closers[-1] == "}" else self._value(text, at)

    def _member(self, text: str, at: int) -> int:
        """A key is to come."""
        if text[at] == '"':
            self._state, self._key = self._string, True
            return at + 1
        return at + 1 if text[at] in SPACE else BROKEN

    def _colon(self, text: str, at: int) -> int:
        if text[at] == ":":
            self._state = self._value
            return at + 1
        return at + 1 if text[at] in SPACE else BROKEN

    def _value(self, text: str, at: int) -> int:
        char = text[at]
        if char in SPACE:
            return at + 1
        if char in PAIRS:
            return self._open(text, at)
        if char == '"':
            self._state, self._key = self._string, False
            return at + 1
        self._token = ""
        self._state = self._number if char in "-0123456789" else self._word
        return self._state(text, at)

    def _after(self, text: str, at: int) -> int:
        """Behind a value."""
        if text[at] in SPACE:
            return at + 1
        if text[at] == ",":
            self._state = self._member if self._closers[-1] == "}" else self._value
            return at + 1
        return self._close(at) if text[at] == self._closers[-1] else BROKEN

    def _number(self, text: str, at: int) -> int:
        token = self._token + text[at]
        if NUMBER_BEGUN.fullmatch(token) and len(token) <= MAX_NUMBER:
            self._token = token
            return at + 1
        if not NUMBER.fullmatch(self._token):
            return BROKEN
        self._beyond += self._beyond_floats(self._length + at)
        self._state = self._after
        return at

    def _word(self, text: str, at: int) -> int:
        self._token += text[at]
        if self._token in WORDS:
            self._state = self._after
        return at + 1 if any(word.startswith(self._token) for word in WORDS) else BROKEN

    def _string(self, text: str, at: int) -> int:
        char = text[at]
        if self._surrogate:  # the second half stands behind it at once
            self._state = self._escape
            return at + 1 if char == "\\" else BROKEN
        if char == '"':
            self._state = self._colon if self._key else self._after
            return at + 1
        if char == "\\":
            self._state = self._escape
            return at + 1
        plain = PLAIN.match(text, at)
        return plain.end() if plain else BROKEN

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._state, self._token = self._hex, ""
            return at + 1
        self._state = self._string
        return at + 1 if text[at] in '"\\/bfnrt' and not self._surrogate else BROKEN

    def _hex(self, text: str, at: int) -> int:
        if text[at] not in DIGITS:
            return BROKEN
        self._token += text[at]
        if len(self._token) == 4:
            code = int(self._token, 16)
            second = 0xDC00 <= code <= 0xDFFF
            if second != self._surrogate:
                return BROKEN
            self._surrogate = 0xD800 <= code <= 0xDBFF
            self._state = self._string
        return at + 1
