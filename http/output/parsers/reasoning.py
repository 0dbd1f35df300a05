"""Reasoning that stands between two markers, before the content, or within it."""

from __future__ import annotations

from ..events import Content, OutputParser, Piece, ReasoningText
from .base import Broken, Reader, Steps, beginning_of_marker


class ThinkingReader(Reader):
    """One block of it first in the text. `inside`: the text begins in a block. `several_before`: others may follow,
    each behind another or first in a line, up to where this begins calls. `special`: the markers are special tokens,
    so that others may follow anywhere, and an end without a beginning says nothing. So does any end before there
    is content: models say it twice. Behind that an answer speaks of it.
    """

    def __init__(
        self,
        starts: tuple[str, ...],
        ends: tuple[str, ...],
        inside: bool,
        several_before: str | None = None,
        special: bool = False,
    ) -> None:
        super().__init__()
        self._starts = starts
        self._ends = ends
        self._inside = inside
        self._special = special
        self._later = starts if several_before or special else ()
        self._over = (several_before,) if several_before else ()
        self._last = ""  # character of the content since the last block
        self._calls: tuple[str, ...] = ()

    def may_end_at(self, *calls: str) -> None:
        """Models forget the end before a call: what begins with one of these is none of thinking."""
        self._calls = calls

    def _read(self) -> Steps[None]:
        if not (yield from self._begins_inside()):
            yield from self._to_next_block()
        while True:
            found = yield from self._until((*self._ends, *self._calls), self._reasoning)
            if found in self._calls:
                call = found.lstrip("\n")
                self._reasoning(found.removesuffix(call))
                self._content(call)
                if self._special:
                    yield from self._to_next_block()
                    continue
                yield from self._until(self._ends, self._content)  # it may come yet, and says nothing any more
            yield from self._run_of(lambda char: char in "\r\n")
            self._last = ""
            yield from self._to_next_block()

    def _to_next_block(self) -> Steps[None]:
        while True:
            found = yield from self._until((*self._later, *self._over, *self._ends), self._content)
            if found in self._later and (self._special or self._last in ("", "\n")):
                return
            if found in self._ends and (self._special or not self._last):
                if not self._special:
                    yield from self._run_of("\r\n".__contains__)
                continue
            self._content(found)
            if found in self._over:
                yield from self._until((), self._content)

    def _content(self, text: str) -> None:
        self._last = text[-1:] or self._last
        super()._content(text)

    def _begins_inside(self) -> Steps[bool]:
        self._held = []  # white space, until it is known what it belongs to
        try:
            yield from self._space()
            yield from self._expect(*self._starts)
            self._let_go()
            return True
        except Broken:
            self._first(self._let_go())
            return self._inside

    def _first(self, text: str) -> None:
        (self._reasoning if self._inside else self._content)(text)

    def _at_end(self) -> None:
        if self._held is not None:
            self._first(beginning_of_marker(self._let_go() + self._text[self._at :]))


class MarkedThinking(Reader):
    """One block of it first in the text, with its markers and all space as it stands. `inside`: the text begins in
    a block, whose first marker the prompt has said.
    """

    def __init__(self, start: str, end: str, inside: bool) -> None:
        super().__init__()
        self._start, self._end, self._inside = start, end, inside

    def _read(self) -> Steps[None]:
        yield from self._char()
        if self._inside:
            self._reasoning(self._start)
        self._held = []  # white space, until it is known whether the model says the first marker itself
        try:
            yield from self._space()
            yield from self._expect(self._start)
            said = self._let_go()
            self._reasoning("" if self._inside else said)
        except Broken:
            self._first(self._let_go())
            if not self._inside:
                yield from self._until((), self._content)
        self._reasoning((yield from self._until((self._end,), self._reasoning)))
        yield from self._until((), self._content)

    def _first(self, text: str) -> None:
        (self._reasoning if self._inside else self._content)(text)

    def _at_end(self) -> None:
        if self._held is not None:
            self._first(beginning_of_marker(self._let_go() + self._text[self._at :]))


class WithinContent:
    """What another parser finds, with reasoning as content."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Piece]:
        """The pieces that this text completes."""
        return _as_content(self._parser.feed(text))

    def finish(self) -> list[Piece]:
        """What was held back."""
        return _as_content(self._parser.finish())


def _as_content(pieces: list[Piece]) -> list[Piece]:
    return [Content(piece.text) if isinstance(piece, ReasoningText) else piece for piece in pieces]


class Unwrapped(Reader):
    """An answer between tags, without them and their lines. A text that does not begin with the first is as it is, but
    for an end that is a special token: the prompt may have begun it. `last` may stand behind it all.
    """

    def __init__(self, start: str, end: str, last: str = "") -> None:
        super().__init__()
        self._start, self._end = start, end
        self._last = (last,) if last else ()

    def _read(self) -> Steps[None]:
        self._held = []  # white space, until it is known what it belongs to
        try:
            yield from self._space()
            yield from self._expect(self._start)
            self._let_go()
            yield from self._run_of(lambda char: char in "\r\n")
        except Broken:
            self._content(self._let_go())
            if not self._end.startswith("<|"):
                yield from self._until((), self._content)
        yield from self._until((f"\n{self._end}", self._end), self._content)
        while True:
            yield from self._until(self._last, self._content)

    def _at_end(self) -> None:
        if self._held is not None:
            self._content(beginning_of_marker(self._let_go() + self._text[self._at :]))


class Chain:
    """What is content to the first parser is read by the second."""

    def __init__(self, first: OutputParser, second: OutputParser) -> None:
        self._first = first
        self._second = second

    def feed(self, text: str) -> list[Piece]:
        """The pieces of both."""
        return self._read(self._first.feed(text))

    def finish(self) -> list[Piece]:
        """What both held back."""
        return [*self._read(self._first.finish()), *self._second.finish()]

    def _read(self, pieces: list[Piece]) -> list[Piece]:
        return [
            one
            for piece in pieces
            for one in (self._second.feed(piece.text) if isinstance(piece, Content) else [piece])
        ]


class Plain:
    """No parser: all is content."""

    def feed(self, text: str) -> list[Piece]:
        """As it comes."""
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        """Nothing is held back."""
        return []
