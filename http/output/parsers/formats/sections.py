"""Formats with a section for all calls of a turn, and markers around each: name, separator, arguments as JSON."""

from __future__ import annotations

from typing import ClassVar

from ..base import SPACE, Broken, Steps
from ..calls import CallReader
from .json_calls import name_char


class SectionCalls(CallReader):
    """A format says its markers; `starts` are those of sections and of a call, `closers` end a call and sections.

    A call counts outside a section, too: models forget to begin it.
    """

    separator: ClassVar[str]

    def _call(self, marker: str) -> Steps[None]:
        if marker != self.starts[-1]:
            yield from self._space()
            yield from self._expect(self.starts[-1])
        self._begin(*(yield from self._head()))
        yield from self._space()
        yield from self._json(self._arguments)
        self._close()

    def _head(self) -> Steps[tuple[str, str | None]]:
        """Name and id, up to where the arguments begin."""
        yield from self._space()
        name = yield from self._name()
        yield from self._space()
        yield from self._expect(self.separator)
        return name, None

    def _name(self) -> Steps[str]:
        name = yield from self._run_of(name_char)
        if not name:
            raise Broken
        return name


class DeepSeekV31(SectionCalls):
    """<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>"""

    starts = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    separator = "<｜tool▁sep｜>"
    closers = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
    ends: tuple[str, ...] = ("<｜tool▁call▁end｜>",)


class DeepSeekV3(DeepSeekV31):
    """<｜tool▁call▁begin｜>function<｜tool▁sep｜>name, then the arguments as a block of code in Markdown."""

    between = "`"
    ends = ("\n```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>")

    def _head(self) -> Steps[tuple[str, str | None]]:
        yield from super()._head()
        name = yield from self._name()
        if (yield from self._char()) not in SPACE:
            raise Broken
        if (yield from self._space()) == "`":
            yield from self._expect("```json", "```\n")
        return name, None


class KimiK2(SectionCalls):
    """<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>; the first is the id. Some
    write the section's marks without the s.
    """

    starts: tuple[str, ...] = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>")
    separator = "<|tool_call_argument_begin|>"
    closers = ("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>")
    ends = ("<|tool_call_end|>",)

    def _head(self) -> Steps[tuple[str, str | None]]:
        call_id, _ = yield from super()._head()
        name, _, number = call_id.rpartition(":")
        name = (name if name and number.isdigit() else call_id).removeprefix("functions.")
        if not name:
            raise Broken
        return name, call_id


class Plamo3(SectionCalls):
    """A request of a tool is its name and its arguments, each between markers of its own."""

    starts = ("<|plamo:begin_tool_requests:plamo|>", "<|plamo:begin_tool_request:plamo|>")
    separator = "<|plamo:end_tool_name:plamo|>"
    closers = (
        "<|plamo:end_tool_arguments:plamo|>",
        "<|plamo:end_tool_request:plamo|>",
        "<|plamo:end_tool_requests:plamo|>",
    )
    ends = closers[:1]

    def _head(self) -> Steps[tuple[str, str | None]]:
        yield from self._space()
        yield from self._expect("<|plamo:begin_tool_name:plamo|>")
        head = yield from super()._head()
        yield from self._space()
        yield from self._expect("<|plamo:begin_tool_arguments:plamo|>")
        yield from self._space()
        if self._text[self._at] == "<":  # what the arguments are written in
            yield from self._expect("<|plamo:constrain|>json<|plamo:msg|>")
        return head
