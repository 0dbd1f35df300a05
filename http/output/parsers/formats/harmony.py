"""The channels of gpt-oss (harmony): reasoning, calls and content are messages, each with a header that says which.

A message is <|channel|>name<|message|>text<|end|>, one to a tool has its recipient in the header. The prompt ends
behind <|start|>assistant, so the first message begins with its channel.
"""

from __future__ import annotations

import re

from ...events import Arguments, CallStart
from ..base import Broken, Reader, Sink, Steps
from ..calls import Schemas

_HEADS = ("<|start|>", "<|channel|>", "<|message|>")
_OVER = ("<|end|>", "<|call|>", "<|return|>")  # of a message; a head that comes without them ends it, too
_FILLER = "commentary"  # at times stands between calls
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class Harmony(Reader):
    """`calls` False: what the model says to tools is content."""

    def __init__(self, schemas: Schemas | None = None, opened: bool = False, calls: bool = True) -> None:
        super().__init__()
        self._schemas: Schemas = schemas or {}
        self._opened = opened
        self._calls = calls
        self._count = 0  # calls begun
        self._given = False  # arguments of the last
        self._firm = False  # it has a marker: no content where the text ends in it

    def _read(self) -> Steps[None]:
        if self._opened and not (yield from self._is_addressed()):
            yield from self._text_to(self._reasoning)
        self._opened = False
        while True:
            header = yield from self._header()
            yield from self._message(header)

    def _is_addressed(self) -> Steps[bool]:
        """Does the first message begin with its recipient? Then it is no thinking, whatever the prompt left open."""
        self._held = []
        try:
            yield from self._space()
            found = yield from self._expect("to=functions.")
            self._at -= len(found)
            self._held = None
            return True
        except Broken:
            self._reasoning(self._let_go())
            return False

    def _header(self) -> Steps[str]:
        """All that stands before a message's text. What is no header is content."""
        while True:
            self._held, self._firm = [], False
            try:
                yield from self._space()
                found = yield from self._expect(*_HEADS, "to=", *((_FILLER,) if self._count else ()))
                if found == _FILLER:
                    if (yield from self._follows(_HEADS, 0, or_end=True)):
                        continue
                    raise Broken
                yield from self._to_message(found)
                return self._let_go()
            except Broken:
                self._content(self._let_go())
            found = yield from self._until((*_HEADS, *_OVER), self._content)
            if found in _HEADS:  # an end of nothing says nothing
                self._at -= len(found)

    def _to_message(self, found: str) -> Steps[None]:
        while found != "<|message|>":
            self._firm = self._firm or found in _HEADS
            yield from self._run_of(lambda char: char not in "<\n")
            found = yield from self._expect("<|channel|>", "<|constrain|>", "<|message|>")

    def _message(self, header: str) -> Steps[None]:
        channels, recipient = _CHANNEL.findall(header), _RECIPIENT.search(header)
        function = self._function(recipient.group(1)) if recipient else None
        if function and self._calls:
            yield from self._call(function)
        elif channels[-1:] == ["analysis"]:  # at times a model says one, and then another
            yield from self._text_to(self._reasoning)
        else:
            yield from self._text_to(self._content)

    def _function(self, recipient: str) -> str | None:
        """Tools that the server does not have (python, browser) are none of the client's, unless it named them."""
        name = recipient.removeprefix("functions.")
        return name if name != recipient or name in self._schemas else None

    def _call(self, name: str) -> Steps[None]:
        self._out.append(CallStart(self._count, name))
        self._count += 1
        self._given = False
        try:
            yield from self._space()
            yield from self._json(self._arguments)
            yield from self._space()
        except Broken:
            pass  # the arguments are what the model wrote
        yield from self._text_to(self._arguments)
        if not self._given:
            self._arguments("{}")

    def _text_to(self, sink: Sink) -> Steps[None]:
        """The text of a message."""
        found = yield from self._until((*_OVER, *_HEADS), sink)
        if found in _HEADS:
            self._at -= len(found)

    def _arguments(self, text: str) -> None:
        if text and not self._ended:  # what is held at the end is a piece of a marker
            self._given = True
            self._out.append(Arguments(self._count - 1, text))

    def _at_end(self) -> None:
        if self._held is not None and not self._firm:
            (self._reasoning if self._opened else self._content)(self._let_go() + self._text[self._at :])
