"""What a model's text is made of: pieces of content, of reasoning and of tool calls, as parsers find them.

The one form between parsers (output/parsers) and the writers of answers (chat, responses, Anthropic's messages).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec


class Content(msgspec.Struct, frozen=True, gc=False):
    """Text for the user."""

    text: str


class ReasoningText(msgspec.Struct, frozen=True, gc=False):
    """Text of the model's thinking, without its markup."""

    text: str


class CallStart(msgspec.Struct, frozen=True, gc=False):
    """A call begins; its arguments follow. `id` only where the model's own markup has one."""

    index: int
    name: str
    id: str | None = None


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """More of a call's arguments: JSON text."""

    index: int
    text: str


Piece = Content | ReasoningText | CallStart | Arguments


class OutputParser(Protocol):
    """One choice's text, in any cuts, to pieces.

    What has come out after some text depends on that text alone, not on how it was cut: a frontend that takes over a
    stream feeds its beginning again in one go, and goes on where its predecessor stood.
    """

    def feed(self, text: str) -> list[Piece]:
        """The pieces that this text completes; what may still become markup is held back."""

    def finish(self) -> list[Piece]:
        """The text has ended: what was held back."""


class FirstCall:
    """A parser's pieces without those of all calls but the first, for clients that take one at a time."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Piece]:
        return _without_more_calls(self._parser.feed(text))

    def finish(self) -> list[Piece]:
        return _without_more_calls(self._parser.finish())


def _without_more_calls(pieces: list[Piece]) -> list[Piece]:
    return [piece for piece in pieces if not (isinstance(piece, CallStart | Arguments) and piece.index)]


@dataclass
class Call:
    """One whole tool call."""

    name: str
    id: str | None = None
    arguments: str = ""


@dataclass
class Turn:
    """One choice, put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, pieces: Iterable[Piece]) -> None:
        """More of it."""
        for piece in pieces:
            match piece:
                case Content(text=text):
                    self.content += text
                case ReasoningText(text=text):
                    self.reasoning += text
                case CallStart():
                    self.calls.append(Call(piece.name, piece.id))
                case Arguments(index=index, text=text):
                    self.calls[index].arguments += text


class WholeCalls:
    """Pieces as they come, for clients that take a call as a whole: one waits until something comes behind it."""

    def __init__(self) -> None:
        self.told = 0  # calls that were given out
        self._open: Call | None = None

    def feed(self, pieces: Iterable[Piece]) -> Iterator[Content | ReasoningText | Call]:
        """What is whole now; take each before the next."""
        for piece in pieces:
            if isinstance(piece, Arguments):
                if self._open is not None:
                    self._open.arguments += piece.text
                continue
            yield from self.finish()
            if isinstance(piece, CallStart):
                self._open = Call(piece.name, piece.id)
            else:
                yield piece

    def finish(self) -> Iterator[Call]:
        """The text has ended, or the call has."""
        if self._open is not None:
            self.told += 1
            call, self._open = self._open, None
            yield call


class JoinedCalls:
    """A parser's pieces, of a call's all at once, for clients that take a call as one part."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser, self._calls = parser, WholeCalls()

    def feed(self, text: str) -> list[Piece]:
        return list(self._joined(self._calls.feed(self._parser.feed(text))))

    def finish(self) -> list[Piece]:
        rest = list(self._joined(self._calls.feed(self._parser.finish())))
        return [*rest, *self._joined(self._calls.finish())]

    def _joined(self, parts: Iterable[Content | ReasoningText | Call]) -> Iterator[Piece]:
        for part in parts:
            if not isinstance(part, Call):
                yield part
                continue
            index = self._calls.told - 1
            yield CallStart(index, part.name, part.id)
            if part.arguments:
                yield Arguments(index, part.arguments)


def text_of(pieces: Iterable[object]) -> str:
    """That for the user."""
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """The same pieces, neighbours of one kind joined."""
    result: list[Piece] = []
    for piece in pieces:
        before = result[-1] if result else None
        if isinstance(piece, Content) and isinstance(before, Content):
            result[-1] = Content(before.text + piece.text)
        elif isinstance(piece, ReasoningText) and isinstance(before, ReasoningText):
            result[-1] = ReasoningText(before.text + piece.text)
        elif isinstance(piece, Arguments) and isinstance(before, Arguments) and piece.index == before.index:
            result[-1] = Arguments(before.index, before.text + piece.text)
        else:
            result.append(piece)
    return result
