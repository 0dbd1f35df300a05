"""Content with tool calls in it: the frame that every format of tool calls fills with how its calls look.

What begins like a call is held until the call's name is known. If it is none, it is content as it stands; once it is a
call it stays one, and what breaks in it then goes into its arguments as the model wrote it. White space beside calls,
and nothing else there, belongs to the markup.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Mapping
from typing import Any

from ..events import Arguments, CallStart, OutputParser, Piece
from .base import SPACE, Broken, Reader, Steps, is_special

SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
BLOCK = "```"  # begins a block of code in Markdown, and ends it
CHARACTERS = string.ascii_letters + string.digits
Schemas = Mapping[str, Mapping[str, Any]]  # the JSON schema of each tool's arguments, by its name


class CallReader(Reader):
    """A format says which markers begin calls and end them, and reads what is between in `_call`."""

    starts: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()  # of them, those that other text begins with too: they make nothing a call
    bare: str = ""  # the character that begins calls without a marker, first in the text or in a line
    in_line: bool = False  # or anywhere in a line
    closers: tuple[str, ...] = ()  # may follow a call
    ends: tuple[str, ...] = ()  # end a call that is broken, as starts do; the first closer is then over, too
    between: str = ""  # may stand between a call and its closers, other than white space

    def __init__(self, schemas: Schemas | None = None) -> None:
        super().__init__()
        self._schemas: Schemas = schemas or {}
        self._count = 0  # calls begun
        self._marked = False  # a marker or a call stands before it: the end of the text does not make it content
        self._given = False  # arguments of the call that has begun: any
        self._whole = True  # and all
        self._blank: list[str] | None = []  # white space since the start or the last call, None if there was more
        self._last = ""  # character of the content
        self._closers: set[str] = set()  # those that may still follow

    def _call(self, marker: str) -> Steps[None]:
        """Reads the calls behind this marker; "" where they are bare, and then takes a character at least."""
        raise NotImplementedError

    def _read(self) -> Steps[None]:
        while True:
            marker = yield from self._next_marker()
            if marker in self._closers:
                self._closers.remove(marker)
                if self._blank is not None:
                    self._blank = []  # what stood before it belongs to the markup
                continue
            yield from self._try(marker)

    def _try(self, marker: str) -> Steps[None]:
        """Reads what stands behind it as calls; what is none is content."""
        count = self._count
        self._held = [marker]
        self._marked = bool(marker and marker not in self.loose) or (count > 0 and self._blank is not None)
        try:
            if "<" in marker and marker.endswith(">") and (yield from self._says_nothing(marker)):
                return
            yield from self._call(marker)
            broken = False
        except Broken:
            broken = True
        if not self._whole:
            yield from self._rest_of_call()
        elif broken or self._count == count:
            self._content(self._let_go())
        self._held = None

    def _says_nothing(self, marker: str) -> Steps[bool]:
        """Does nothing stand between a tag and what closes it? Then both say nothing, and are taken; but for plain ones
        within a line, which an answer speaks of.
        """
        begins_line = self._blank is not None or self._last == "\n"
        try:
            space = yield from self._run_of(SPACE.__contains__)
            yield from self._expect(*self.closers)
        except Broken:
            return False
        if not (begins_line or "\n" in space or is_special(marker)):
            raise Broken
        self._held = None
        return True

    def _next_marker(self) -> Steps[str]:
        """What comes up to it is content."""
        if self.bare and self._blank is not None:
            yield from self._blanks()
            if (yield from self._char()) == self.bare:
                return (yield from self._start_here())
        begin = self.bare if self.in_line or not self.bare else "\n" + self.bare
        found = yield from self._until((*self.starts, *filter(None, [begin]), *sorted(self._closers)), self._content)
        if found != begin:
            return found
        self._content(begin[:-1])
        self._at -= 1  # it is read as part of the call
        return (yield from self._start_here())

    def _start_here(self) -> Steps[str]:
        """The marker that stands where bare calls may; "" where none does."""
        self._held, self._marked = [], False
        try:
            return (yield from self._expect(*self.starts))
        except Broken:
            return ""

    def _blanks(self) -> Steps[None]:
        while (yield from self._char()) in self._blank_chars():
            self._content(self._take(1))

    def _blank_chars(self) -> str:
        ended = not self._count or len(self._closers) < len(self.closers)
        return SPACE if ended else SPACE + self.between

    def _rest_of_call(self) -> Steps[None]:
        self._more_arguments(self._let_go())
        found = yield from self._until(tuple(dict.fromkeys((*self.ends, *self.starts))), self._more_arguments)
        self._whole = True
        if found in self.starts:
            self._at -= len(found)
        self._closers.difference_update(self.closers[:1])

    def _content(self, text: str) -> None:
        if self._blank is not None:
            if self._ended and self._count:
                return  # a piece of a marker behind a call
            self._blank.append(text)
            if not text.strip(self._blank_chars()):
                return
            text = "".join(self._blank)
            self._blank = None
        self._last = text[-1:] or self._last
        super()._content(text)

    def _end_of_block(self) -> Steps[None]:
        """Takes what ends a block of code in Markdown, if it stands here."""
        if (yield from self._space()) == BLOCK[0]:
            yield from self._expect(BLOCK)

    def _may_be(self, name: str) -> bool:
        """Can a call have this name? One with neither a marker nor a call before it needs that of a tool."""
        return bool(name) and (self._marked or name in self._schemas)

    def _begin(self, name: str, call_id: str | None = None) -> None:
        """It is a call."""
        self._out.append(CallStart(self._count, name, call_id))
        self._count += 1
        self._held, self._blank, self._marked = None, [], True
        self._given = self._whole = False
        self._closers = set(self.closers)

    def _arguments(self, text: str) -> None:
        """More of the arguments of the call that has begun."""
        if text:
            self._given = True
            self._more_arguments(text)

    def _more_arguments(self, text: str) -> None:
        if text and not self._is_scrap:
            self._out.append(Arguments(self._count - 1, text))

    def _close(self) -> None:
        """The arguments are all there. What follows is held: it may be another call."""
        if not self._given:
            self._more_arguments("{}")
        self._whole = True
        self._held = []

    def _at_end(self) -> None:
        if self._held is None and self._blank and not self._count:
            super()._content("".join(self._blank))
        elif self._held is not None and not self._marked:
            self._content(self._let_go() + self._text[self._at :])


class ShortIds:
    """Calls with ids of 9 letters or digits, as Mistral's models and their clients know them, made of a key."""

    def __init__(self, parser: OutputParser, key: str) -> None:
        self._parser = parser
        self._key = key

    def feed(self, text: str) -> list[Piece]:
        """The parser's pieces."""
        return [self._with_id(piece) for piece in self._parser.feed(text)]

    def finish(self) -> list[Piece]:
        """The parser's last pieces."""
        return [self._with_id(piece) for piece in self._parser.finish()]

    def _with_id(self, piece: Piece) -> Piece:
        if not isinstance(piece, CallStart) or SHORT_ID.fullmatch(piece.id or ""):
            return piece
        digest = hashlib.sha256(f"{self._key}_{piece.index}".encode()).digest()
        return CallStart(piece.index, piece.name, "".join(CHARACTERS[byte % len(CHARACTERS)] for byte in digest[:9]))
