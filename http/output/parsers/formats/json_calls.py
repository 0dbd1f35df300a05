"""Formats whose calls are JSON objects, {"name": …, "arguments": …}, between markers or bare."""

from __future__ import annotations

from typing import NamedTuple

from ..base import Broken, Steps, dropped
from ..calls import BLOCK, CallReader, Schemas
from ..json_scan import JsonScan, mended
from ..values import parsed, string

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", *_ARGUMENTS, "id", "type")  # of a call without a marker: an object that has others is none


def name_char(char: str) -> bool:
    """May it stand in a name, where that is not in quotes?"""
    return char.isalnum() or char in "_-.:/"


class JsonCalls(CallReader):
    """One object, or a list of them, behind a marker or first in a line."""

    name_key, id_key = "name", "id"
    name_alone = True  # is a call behind no marker, without arguments
    one_by_one = False  # objects may follow one another without a list
    head = ""  # stands between a marker and its calls

    def _call(self, marker: str) -> Steps[None]:
        if self.head and marker:
            yield from self._space()
            yield from self._expect(self.head)
            self._marked = True
        if not marker.endswith("["):
            if (yield from self._space()) != "[":
                yield from self._objects()
                return
            self._take(1)
        while (yield from self._space()) != "]":
            yield from self._object()
            if (yield from self._space()) == ",":
                self._take(1)
        self._take(1)
        if marker.startswith(BLOCK):
            yield from self._end_of_block()

    def _objects(self) -> Steps[None]:
        yield from self._object()
        while self.one_by_one and (yield from self._space()) == "{":
            yield from self._object()

    def _object(self) -> Steps[None]:
        """One call."""
        yield from self._expect("{")
        name: str | None = None
        call_id: str | None = None
        early: list[str] | None = None  # arguments that came before the name
        while (yield from self._space()) != "}":
            key = yield from self._string()
            if not self._marked and key not in (*_KEYS, self.name_key):
                raise Broken
            yield from self._space()
            yield from self._expect(":")
            first = yield from self._space()
            if key == self.name_key and name is None:
                name = yield from self._string()
                if self._marked or early is not None or not self._may_be(name):
                    self._named(name, call_id, early)
            elif key in _ARGUMENTS and early is None:
                if name is not None and self._whole:
                    self._named(name, call_id, early)
                early = []
                yield from self._value(first, early)
            elif key == self.id_key and name is None and first == '"':
                call_id = yield from self._string()
            else:
                yield from self._json(dropped)
            if (yield from self._space()) == ",":
                self._take(1)
            elif self._text[self._at] != "}":
                raise Broken
        if name is None:
            raise Broken
        if early is None:
            self._without_arguments(name, call_id)
        self._take(1)
        self._held = []

    def _without_arguments(self, name: str, call_id: str | None) -> None:
        """Behind no marker it is no call before something else than its name says so: others have names, too."""
        if self._whole:
            if not self.name_alone:
                raise Broken
            self._named(name, call_id, None)
        self._close()

    def _named(self, name: str, call_id: str | None, early: list[str] | None) -> None:
        if not self._may_be(name):
            raise Broken
        self._begin(name, call_id)
        if early is not None:
            self._arguments("".join(early))
            self._close()

    def _value(self, first: str, early: list[str]) -> Steps[None]:
        """The arguments. They are given out as they come if the call has begun, else kept; a string may hold them."""
        begun = not self._whole
        if first in "{[":
            yield from self._json(self._arguments if begun else early.append)
        else:
            raw: list[str] = []
            yield from self._json(raw.append)
            said = _object_in("".join(raw))
            (self._arguments if begun else early.append)(said)
        if begun:
            self._close()

    def _string(self) -> Steps[str]:
        if (yield from self._char()) != '"':
            raise Broken
        raw: list[str] = []
        yield from self._json(raw.append)
        if (said := string("".join(raw))) is None:
            raise Broken
        return said


def _object_in(raw: str) -> str:
    """Arguments that are no object: a string that holds one is that object; null and "" are none."""
    if raw in ("null", '""'):
        return "{}"
    said = mended(string(raw) or "")
    try:
        return said if isinstance(parsed(said), dict) else raw
    except ValueError:
        return raw


class JsonForm(NamedTuple):
    """How a format marks its JSON: what calls read of it, as fields of the same names say."""

    starts: tuple[str, ...]
    ends: tuple[str, ...] = ()
    between: str = ""
    loose: tuple[str, ...] = ()
    bare: str = ""
    name_key: str = "name"
    id_key: str = "id"
    one_by_one: bool = False
    head: str = ""


class MarkedCalls(JsonCalls):
    """Those of a form."""

    def __init__(self, form: JsonForm, schemas: Schemas | None = None) -> None:
        super().__init__(schemas)
        self.starts, self.loose, self.bare = form.starts, form.loose, form.bare
        self.closers = self.ends = form.ends
        self.between, self.one_by_one, self.head = form.between, form.one_by_one, form.head
        self.name_key, self.id_key = form.name_key, form.id_key


class Llama3Json(JsonCalls):
    """{"name": …, "parameters": {…}}; {…}: with <|python_tag|> before it, or in Llama 4's tags, or without any."""

    starts = ("<|python_tag|>", "<|python_start|>")
    closers = ("<|python_end|>",)
    bare = "{"
    in_line = True
    between = ";}"

    def _call(self, marker: str) -> Steps[None]:
        count = self._count
        try:
            yield from super()._call(marker)
        except Broken:
            if marker or self._count > count:
                raise
            yield from self._other_object()

    def _other_object(self) -> Steps[None]:
        """What is no call is content with all that is in it: objects inside an object are none either."""
        begun = self._let_go()
        scan = JsonScan()
        scan.push(begun, 0)
        self._content(begun)
        while not (scan.done or scan.broken):
            self._content(self._take(scan.push(self._text, self._at) - self._at))
            if not (scan.done or scan.broken):
                yield from self._more()


class Mistral(JsonCalls):
    """[TOOL_CALLS][{…}, {…}], or [TOOL_CALLS]name[CALL_ID]id[ARGS]{…} for each call."""

    starts = ends = ("[TOOL_CALLS]",)

    def _call(self, marker: str) -> Steps[None]:
        if (yield from self._space()) in "[{":
            yield from super()._call(marker)
            return
        name = yield from self._run_of(name_char)
        if not name:
            raise Broken
        found = yield from self._expect("[ARGS]", "[CALL_ID]", "{")
        call_id = None
        if found == "[CALL_ID]":
            call_id = yield from self._run_of(name_char)
            yield from self._expect("[ARGS]")
        elif found == "{":
            self._at -= 1
        self._begin(name, call_id)
        yield from self._space()
        yield from self._json(self._arguments)
        self._close()


class GigaChat(JsonCalls):
    """function call{"name": …, "arguments": …}, at times with the token between them that begins a role's text; newer
    ones begin with a token of their own."""

    starts = ("<|function_call|>", "<|message_sep|>\n\nfunction call", "<|message_sep|>function call", "function call")
    loose = ("function call",)

    def _call(self, marker: str) -> Steps[None]:
        if (yield from self._space()) == "<":
            self._marked = True
            yield from self._expect("<|role_sep|>")
        yield from super()._call(marker)


class Apertus(JsonCalls):
    """<|tools_prefix|>[{name: {…}}, {name: {…}}]<|tools_suffix|>: a call is a name with its arguments."""

    starts = ("<|tools_prefix|>",)
    closers = ends = ("<|tools_suffix|>",)

    def _object(self) -> Steps[None]:
        count = self._count
        yield from self._expect("{")
        while (yield from self._space()) != "}":
            name = yield from self._string()
            if not self._may_be(name):
                raise Broken
            yield from self._space()
            yield from self._expect(":")
            first = yield from self._space()
            self._begin(name)
            yield from self._value(first, [])
            if (yield from self._space()) == ",":
                self._take(1)
            elif self._text[self._at] != "}":
                raise Broken
        if self._count == count:
            raise Broken
        self._take(1)
        self._held = []


class JsonArray(JsonCalls):
    """The whole text is [{…}, {…}]: what a grammar makes of "any tool, but a tool"."""

    bare = "["

    def _call(self, marker: str) -> Steps[None]:
        self._marked = True  # a grammar began it, so that it is no content even where it is cut
        yield from super()._call(marker)


class NamedCall(JsonCalls):
    """The whole text is the arguments of one call: of the tool that the request names, by a grammar."""

    bare = "{"

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _call(self, marker: str) -> Steps[None]:
        if self._count:
            self._take(1)
            raise Broken
        self._begin(self._name)
        yield from self._json(self._arguments)
        self._close()


_TOOL_CALL = JsonForm(("<tool_call>",), ("</tool_call>",), between="}")  # at times one brace too many
_TOOL_CALLS = JsonForm(("<tool_calls>",), ("</tool_calls>",), one_by_one=True)
_COHERE = JsonForm(("<|START_ACTION|>",), ("<|END_ACTION|>",), name_key="tool_name", id_key="tool_call_id")
JSON_FORMS: dict[str, JsonForm] = {
    "hermes": _TOOL_CALL,
    "ernie45": _TOOL_CALL,
    "granite4": _TOOL_CALL,
    "granite": JsonForm(("<|tool_call|>", "<tool_call>"), ("</tool_call>", "<|/tool_call|>")),
    "granite_20b_fc": JsonForm(("<function_call>",), ("</function_call>",)),
    "hunyuan_a13b": _TOOL_CALLS,
    "jamba": _TOOL_CALLS,
    "minimax": _TOOL_CALLS,
    "nemotron_json": JsonForm(("<TOOLCALL>",), ("</TOOLCALL>",)),
    "longcat": JsonForm(("<longcat_tool_call>",), ("</longcat_tool_call>",)),
    "cohere_command_r": JsonForm(
        ("Action:",), ("```",), loose=("Action:",), head="```json", name_key="tool_name", id_key="tool_call_id"
    ),
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "internlm": JsonForm(("<|action_start|>",), ("<|action_end|>",), head="<|plugin|>"),
    "phi4_mini_json": JsonForm(("functools[", "<|tool_call|>"), ("<|/tool_call|>",)),
    "xlam": JsonForm(
        ("<tool_call>", "[TOOL_CALLS]", "```json\n[", "```\n[", '{"tool_calls":'),
        ("</tool_call>",),
        loose=("```json\n[", "```\n[", '{"tool_calls":'),
        bare="[",
        between="}",  # of the first xLAMs, whose list is the one member of an object
    ),
}
"""Formats that differ in their markers alone: one object or a list of them stands between these."""
