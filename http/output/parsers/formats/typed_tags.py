"""Formats with a tag for each argument that are special tokens, or have some in them, and say what is a string."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from ..base import Broken, Steps
from ..json_scan import mended
from ..values import parsed, typed
from .tagged import QUOTES, MinimaxM2

STRING = frozenset({"string"})
JSON_TYPES = frozenset({"object", "array", "number", "integer", "boolean", "null"})
WRAPPERS = ("arguments", "input")  # of all arguments


class DeepSeekV32(MinimaxM2):
    """Tags like MiniMax's, each with ｜DSML｜ in it; those of arguments say what is a string, and what is JSON."""

    starts: tuple[str, ...] = (
        "<｜DSML｜function_calls>",
        "<｜DSML｜tool_calls>",
        "<｜DSML｜invoke name=",
    )  # tool_calls: V4
    heads: ClassVar[tuple[str, ...]] = ("<｜DSML｜invoke name=",)
    closers: tuple[str, ...] = ("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>")
    over = "</｜DSML｜invoke>"
    parameter = ("<｜DSML｜parameter name=", "</｜DSML｜parameter>")
    special = True
    kind: ClassVar[str] = "string"  # the attribute that says it, and its value for strings
    text: ClassVar[str] = "true"
    _said: frozenset[str] | None = None  # the types that the tag of the last argument leaves

    def _key(self, said: str) -> str:
        name, _, kind = said.partition(f" {self.kind}=")
        kind = kind.strip().strip(QUOTES)
        self._said = (STRING if kind == self.text else JSON_TYPES) if kind else None
        return name.strip().strip(QUOTES)

    def _types(self, key: str) -> frozenset[str]:
        """Of those that the schema gives, those that the tag leaves; where it leaves none the schema is right."""
        wanted = super()._types(key)
        return wanted if self._said is None else (wanted & self._said) or wanted or self._said

    def _argument(self, key: str, ends: tuple[str, ...]) -> Steps[str | None]:
        """At times all arguments stand as one object in the first, under a name that the tool does not have."""
        known = self._known
        if self._given or key not in WRAPPERS or not known or key in known:
            return (yield from super()._argument(key, ends))
        value: list[str] = []
        following = yield from self._value(ends, value.append)
        said = "".join(value)
        if (inside := _object(said)) is not None and inside.keys() <= known.keys():
            self._arguments(mended(said.strip())[:-1].rstrip() if inside else "")
        else:
            self._arguments(f"{{{json.dumps(key)}: {typed(said, self._types(key))}")
        return following


class DeepSeekV41(DeepSeekV32):
    """The same with a space before each tag's name, and another name of the section."""

    starts = ("<｜DSML｜ calls>", "<｜DSML｜ invoke name=")
    heads = ("<｜DSML｜ invoke name=",)
    closers = ("</｜DSML｜ calls>",)
    over = "</｜DSML｜ invoke>"
    parameter = ("<｜DSML｜ parameter name=", "</｜DSML｜ parameter>")


class GigaChat35(DeepSeekV32):
    """DeepSeek V4's with another mark."""

    starts = ("<｜GCML｜tool_calls>", "<｜GCML｜invoke name=")
    heads = ("<｜GCML｜invoke name=",)
    closers = ("</｜GCML｜tool_calls>",)
    over = "</｜GCML｜invoke>"
    parameter = ("<｜GCML｜parameter name=", "</｜GCML｜parameter>")


class KimiK3(DeepSeekV32):
    """<|open|>call tool="name" index="1"<|sep|> and in it <|open|>argument key="key" type="number"<|sep|>7, all closed
    as <|close|>call<|sep|>.
    """

    starts = ("<|open|>tools<|sep|>", "<|open|>call tool=")
    heads = ("<|open|>call tool=",)
    closers = ("<|close|>tools<|sep|>", "<|close|>message<|sep|>")
    over = "<|close|>call<|sep|>"
    parameter = ("<|open|>argument key=", "<|close|>argument<|sep|>")
    tag_end = "<|sep|>"
    kind, text = "type", "string"

    def _name(self) -> Steps[str]:
        said: list[str] = []
        yield from self._until((self.tag_end, "\n"), said.append)
        name = self._plain("".join(said).partition(" index=")[0])
        if not name:
            raise Broken
        return name

    def _key(self, said: str) -> str:
        return self._plain(super()._key(said))

    def _plain(self, attribute: str) -> str:
        return attribute.strip().strip(QUOTES).replace("&quot;", '"').replace("&amp;", "&")


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = parsed(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
