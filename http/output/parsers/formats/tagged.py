"""Formats with a tag for each argument, whose values are plain text: the tool's schema says what type they have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from ..base import Broken, Sink, Steps, dropped
from ..calls import BLOCK, CallReader
from ..values import properties, quoted, typed, types
from .json_calls import name_char

QUOTES = "\"'"
CDATA, CDATA_END = "<![CDATA[", "]]>"


class TaggedCalls(CallReader):
    """Makes JSON of the arguments as they come. Strings are streamed, other values come when they are whole."""

    _is_empty = False  # the tag with the function's name is its end, too

    def _open_object(self, name: str) -> None:
        self._begin(name)
        self._schema: Mapping[str, Any] = self._schemas.get(name, {})
        self._known = properties(self._schema)

    def _name(self) -> Steps[str]:
        """A function's name, in quotes or not, up to the end of its tag."""
        yield from self._run_of(lambda char: char in QUOTES)
        name = yield from self._run_of(name_char)
        if not name.rstrip("/"):
            raise Broken
        yield from self._run_of(lambda char: char in QUOTES)
        yield from self._space()
        self._is_empty = (yield from self._expect(">", "/>")) == "/>" or name.endswith("/")
        return name.rstrip("/")

    def _argument(self, key: str, ends: tuple[str, ...]) -> Steps[str | None]:
        """A value up to one of these ends. The next one's key, where that has ended it."""
        self._arguments((", " if self._given else "{") + json.dumps(key, ensure_ascii=False) + ": ")
        wanted = self._types(key)
        if wanted <= {"string"}:  # without a type it stays the text that it is
            self._arguments('"')
            following = yield from self._value(ends, lambda text: self._arguments(quoted(text)))
            self._arguments('"')
            return following
        value: list[str] = []
        following = yield from self._value(ends, value.append)
        self._arguments(typed("".join(value), wanted))
        return following

    def _types(self, key: str) -> frozenset[str]:
        """Those that an argument's value may have."""
        return types(self._schema, key)

    def _value(self, ends: tuple[str, ...], sink: Sink) -> Steps[str | None]:
        """Its text goes to the sink."""
        yield from self._until(ends, sink)
        return None

    def _begins_again(self, found: str) -> None:
        """A call that has begun inside this one, whose end the model has forgotten, is one of its own."""
        if found in self.starts:
            self._at -= len(found)

    def _close_object(self) -> None:
        if self._given:
            self._arguments("}")
        self._close()


class Qwen3Coder(TaggedCalls):
    """<tool_call><function=name><parameter=key>value</parameter></function></tool_call>, or without the outer tag;
    or with all arguments as JSON.
    """

    starts: tuple[str, ...] = ("<tool_call>", "<function=")  # of several calls, and of one
    heads: ClassVar[tuple[str, ...]] = ("<function=",)  # from a start to the name; those that are starts, too, begin it
    closers: tuple[str, ...] = ("</tool_call>",)
    over = "</function>"
    parameter: ClassVar[tuple[str, str]] = ("<parameter=", "</parameter>")
    tag_end = ">"
    own_lines: ClassVar[bool] = True  # values stand on lines of their own
    special: ClassVar[bool] = False  # its tags are, so that no value has them
    _in_block = False  # of code, by the content
    _ticks = 0  # at the content's end, of a mark of such a block that has only begun

    def _content(self, text: str) -> None:
        super()._content(text)
        text = BLOCK[0] * self._ticks + text
        self._in_block ^= text.count(BLOCK) % 2 == 1
        self._ticks = (len(text) - len(text.rstrip(BLOCK[0]))) % len(BLOCK)

    def _call(self, marker: str) -> Steps[None]:
        amid_text = marker in self.heads and not self.special and self._blank is None
        if amid_text and (self._in_block or self._last in (BLOCK[0], *QUOTES)):
            raise Broken  # the text speaks of it
        heads = self.heads[self.heads.index(marker) + 1 if marker in self.heads else 0 :]
        while heads:  # models leave some out
            yield from self._space()
            heads = heads[heads.index((yield from self._expect(*heads))) + 1 :]
        name = yield from self._name()
        if amid_text and not self._is_empty and not (yield from self._follows(self._tags("{"), 0)):
            raise Broken
        self._open_object(name)
        if self._is_empty:
            self._close_object()
            return
        if (yield from self._space()) == "{" and (yield from self._follows(('"', "'", "}"), 1)):
            found = yield from self._object_of_arguments()
            self._close()
        else:
            found = yield from self._tagged()
            self._close_object()
        self._closers.discard(found)
        self._begins_again(found)

    def _object_of_arguments(self) -> Steps[str]:
        """All of them as JSON. What has ended them: what breaks in it does not break what stands behind the call."""
        sink: Sink = dropped
        try:
            yield from self._json(self._arguments)
        except Broken:
            sink = self._more_arguments
        return (yield from self._until((self.over, *self.closers, *self.starts), sink))

    def _tags(self, *more: str) -> tuple[str, ...]:
        """Those that may stand behind an argument."""
        return (self.parameter[0], self.over, *self.closers, *self.starts, *more)

    def _tagged(self) -> Steps[str]:
        """The arguments, each in its tag. What has ended them."""
        begin, end = self.parameter
        lines = ("\n" + end, "\n" + self.over) if self.own_lines else ()
        ends = (*lines, end, self.over, "\n" + begin, begin)
        while (found := (yield from self._until(self._tags(), dropped))) == begin:
            first: list[str] = []
            yield from self._until((self.tag_end,), first.append)
            key: str | None = self._key("".join(first))
            while key is not None:
                if self.own_lines and (yield from self._char()) == "\n":
                    self._take(1)
                key = yield from self._argument(key, ends)
        return found

    def _key(self, said: str) -> str:
        """An argument's name, of what stands in its tag."""
        return said.strip(QUOTES)

    def _value(self, ends: tuple[str, ...], sink: Sink) -> Steps[str | None]:
        """Where the model has forgotten the end, the function's next argument ends it, or its own end. An end that
        nothing follows of what may is part of the value.
        """
        while True:
            found = yield from self._until(ends, sink)
            if not found.endswith(self.parameter[0]):
                if (yield from self._has_ended(found)):
                    return None
                sink(self._take(len(found)))
                continue
            key: list[str] = []
            behind = yield from self._until((self.tag_end, "\n"), key.append)
            said = "".join(key)
            is_next = behind == self.tag_end and (name := self._key(said)) in self._known
            if is_next and (self.special or found[0] == "\n" or (yield from self._char()) != " "):
                return name  # where a space follows, a sentence speaks of it
            sink(f"{found}{said}{behind}")

    def _has_ended(self, found: str) -> Steps[bool]:
        """Is this the end of a value, by what stands behind it? Then it is taken, but for the end of the function;
        else it stands here again.
        """
        self._at -= len(found)
        is_over = found.endswith(self.over)
        wanted = (*self.closers, *self.starts) if is_over else self._tags(self.parameter[1])
        if not (self.special or (yield from self._follows(wanted, len(found), or_end=is_over))):
            return False
        self._take(len(found) - (len(self.over) if is_over else 0))
        return True


class SeedOss(Qwen3Coder):
    """The same with another tag around it; values begin and end in their tags."""

    starts = ("<seed:tool_call>", "<function=")
    closers = ("</seed:tool_call>",)
    own_lines = False


class MinimaxM2(Qwen3Coder):
    """<minimax:tool_call><invoke name="name"><parameter name="key">value</parameter></invoke></minimax:tool_call>"""

    starts: tuple[str, ...] = ("<minimax:tool_call>", "<invoke name=")
    heads: ClassVar[tuple[str, ...]] = ("<invoke name=",)
    closers: tuple[str, ...] = ("</minimax:tool_call>",)
    over = "</invoke>"
    own_lines = False
    parameter = ("<parameter name=", "</parameter>")


class Step3(MinimaxM2):
    """Tags like MiniMax's in a section with markers around each call, like DeepSeek's."""

    starts = ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<steptml:invoke name=")
    heads = ("<｜tool_call_begin｜>", "function", "<｜tool_sep｜>", "<steptml:invoke name=")
    closers = ("<｜tool_call_end｜>", "<｜tool_calls_end｜>")
    over = "</steptml:invoke>"
    parameter = ("<steptml:parameter name=", "</steptml:parameter>")
    special = True


class Dots(MinimaxM2):
    """The same with another tag around it."""

    starts = ("<dots_function_call>", "<invoke name=")
    closers = ("</dots_function_call>",)


class MiniCPM5(Qwen3Coder):
    """<function name="name"><param name="key">value</param></function>; a value may stand in <![CDATA[…]]>."""

    starts = heads = ("<function name=",)
    closers = ()
    parameter = ("<param name=", "</param>")
    own_lines = False

    def _value(self, ends: tuple[str, ...], sink: Sink) -> Steps[str | None]:
        self._held = []
        try:
            yield from self._space()
            yield from self._expect(CDATA)
        except Broken:
            sink(self._let_go())
            return (yield from super()._value(ends, sink))
        self._let_go()
        yield from self._until((CDATA_END,), sink)
        while (yield from self._until((self.parameter[1], CDATA), dropped)) == CDATA:  # "]]>" is written in two of them
            yield from self._until((CDATA_END,), sink)
        return None
