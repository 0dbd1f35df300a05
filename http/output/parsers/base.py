"""What all parsers stand on: text that comes in cuts, read by a coroutine that waits where it needs more.

Each way to read takes what it can and waits as soon as the text ends, so that what has come out depends on the text
alone and not on its cuts; nothing is looked at twice but the beginning of a marker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from ..events import Content, Piece, ReasoningText
from .json_scan import JsonScan
from .markers import markers

T = TypeVar("T")
Steps = Generator[None, None, T]
Sink = Callable[[str], None]

SPACE = " \t\r\n"
FAR = 1000  # characters of white space, behind which nothing is looked for


_SPECIAL = re.compile(r"\s*<[|｜][^<>|｜]*[|｜]?>")


def beginning_of_marker(text: str) -> str:
    """What is left of it where the text has ended in it: none of a special token, which no answer says."""
    return "" if _SPECIAL.match(text) else text


def is_special(marker: str) -> bool:
    """Is it made of special tokens, which no answer says?"""
    return "|" in marker or "｜" in marker


def dropped(text: str) -> None:
    """Sink of what no one needs."""


class End(Exception):
    """The text has ended where more was needed."""


class Broken(Exception):
    """The text is not the markup that was read; the character that does not fit is not taken."""


class Reader:
    """An OutputParser whose `_read` is a coroutine. `_out` gets the pieces."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # what stands before it is taken
        self._ended = False
        self._is_scrap = False  # the text has ended, and what sinks get is a piece of a marker
        self._held: list[str] | None = None  # what was taken and may not be what it seems; None: nothing is held
        self._out: list[Piece] = []
        self._steps = self._run()

    def feed(self, text: str) -> list[Piece]:
        """The pieces that this text completes."""
        self._text = self._text[self._at :] + text
        self._at = 0
        return self._go_on()

    def finish(self) -> list[Piece]:
        """The text has ended."""
        self._ended = True
        return self._go_on()

    def _go_on(self) -> list[Piece]:
        next(self._steps, None)
        out, self._out = self._out, []
        return out

    def _run(self) -> Steps[None]:
        try:
            yield from self._read()
        except End:
            self._at_end()

    def _read(self) -> Steps[None]:
        """Never returns: it waits for more until End is raised."""
        raise NotImplementedError

    def _at_end(self) -> None:
        """The text ended somewhere in `_read`."""

    def _content(self, text: str) -> None:
        if text:
            self._out.append(Content(text))

    def _reasoning(self, text: str) -> None:
        if text:
            self._out.append(ReasoningText(text))

    def _more(self) -> Steps[None]:
        if self._ended:
            raise End
        yield

    def _take(self, count: int) -> str:
        taken = self._text[self._at : self._at + count]
        self._at += len(taken)
        if self._held is not None:
            self._held.append(taken)
        return taken

    def _let_go(self) -> str:
        """What was held; it is no more."""
        held, self._held = self._held, None
        return "".join(held or ())

    def _char(self) -> Steps[str]:
        """The next character, not taken."""
        while self._at >= len(self._text):
            yield from self._more()
        return self._text[self._at]

    def _run_of(self, allowed: Callable[[str], bool]) -> Steps[str]:
        """Takes characters as long as they are allowed."""
        taken: list[str] = []
        while allowed((yield from self._char())):
            taken.append(self._take(1))
        return "".join(taken)

    def _space(self) -> Steps[str]:
        """Takes white space; the character that stands behind it."""
        while (char := (yield from self._char())) in SPACE:
            self._take(1)
        return char

    def _until(self, ends: tuple[str, ...], sink: Sink) -> Steps[str]:
        """Gives the text to the sink until one of these ends comes, takes it, and says which."""
        wanted = markers(*ends)
        while True:
            if found := wanted.find(self._text, self._at):
                sink(self._take(found[0] - self._at))
                return self._take(len(found[1]))
            sink(self._take(wanted.free(self._text, self._at) - self._at))
            if self._ended:
                self._is_scrap = True
                sink(beginning_of_marker(self._take(len(self._text) - self._at)))
            yield from self._more()

    def _expect(self, *wanted: str) -> Steps[str]:
        """Takes the one of these that stands here; else it is Broken."""
        known = markers(*wanted)
        while (found := known.here(self._text, self._at)) is None:
            if not known.begins(self._text, self._at):
                raise Broken
            yield from self._more()
        return self._take(len(found))

    def _follows(self, wanted: tuple[str, ...], behind: int, or_end: bool = False) -> Steps[bool]:
        """Does one of these stand so many characters behind, after white space? Nothing is taken. `or_end`: or does
        the text end there? Where there is white space without an end, as of a model that says nothing else any more,
        they are taken to.
        """
        known = markers(*wanted)
        while True:
            at = begin = self._at + behind
            near = self._text[begin : begin + FAR]
            at += len(near) - len(rest := near.lstrip(SPACE))
            if at - begin == FAR:
                return True
            if (found := known.here(self._text, at)) is not None or (rest and not known.begins(self._text, at)):
                return found is not None
            if self._ended and or_end:
                return True
            yield from self._more()

    def _json(self, sink: Sink) -> Steps[None]:
        """One JSON value, given to the sink as it comes; what of it is nearly JSON, as JSON."""
        scan = JsonScan()
        while True:
            self._take(scan.push(self._text, self._at) - self._at)
            sink(scan.take())
            if scan.broken:
                raise Broken
            if scan.done:
                return
            yield from self._more()
