"""Custom tools: their input is a text, which may have to keep to a grammar.

The model is offered each as a function with one string. A call's arguments are that string's JSON, of which the client
is given the text as it comes. Where such a tool is asked for by name and has a grammar, all of the answer is its input,
and keeps to that. Which tools are custom ones is told by what a response says again, so that whoever goes on with an
answer finds it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from ....errors import bad_request
from ....generation.adapter import checked
from ..schemas import Object, ResponsesTool
from .namespaces import NAMESPACE, joined, plain

CUSTOM = "custom"
INPUT = "input"
SYNTAXES = {"lark": "Lark grammar", "regex": "regular expression"}
OUTPUTS = {"lark": "grammar", "regex": "regex"}  # by syntax, the name in structured_outputs
HEAD = '{"input":"'  # of the arguments, without white space
BETWEEN = (0, 1, 8, 9)  # behind so many characters of it there may be some
PIECES = re.compile(
    r'(?:[^"\\]+|\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*'
)
HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")  # of a character
ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u....|\\u....|\\.", re.DOTALL)
LONGEST_ESCAPE = 12  # characters: two halves
UNKNOWN = "\ufffd"
MCP_FIELDS = ("server_label", "server_url", "server_description", "allowed_tools", "require_approval")
SECRETS = ("headers", "authorization", "connector_id")  # which are not said again


class CustomFormat(msgspec.Struct):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class Customs(NamedTuple):
    """What a response's tools say of its calls."""

    names: frozenset[str] = frozenset()  # of custom tools, as the model knows them
    forced: str | None = None  # the answer is this one's input, and nothing else


def customs_of(tools: Iterable[Mapping[str, Any]], choice: object) -> Customs:
    """Of tools and tool_choice as a response says them again."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        inside = tool["tools"] if tool.get("type") == NAMESPACE else ()
        found |= {joined(tool["name"], one["name"]): one for one in inside if one.get("type") == CUSTOM}
        if tool.get("type") == CUSTOM:
            found[tool["name"]] = tool
    forced = choice.get("name") if isinstance(choice, Mapping) and choice.get("type") == CUSTOM else None
    is_raw = forced in found and (found[forced].get("format") or {}).get("type") == "grammar"
    return Customs(frozenset(found), forced if is_raw else None)


def said_again(tool: Object) -> Object:
    """A tool in a response."""
    if tool["type"] == "mcp":
        return {"type": "mcp"} | {name: tool[name] for name in MCP_FIELDS if tool[name] is not None}
    if tool["type"] != CUSTOM:
        return {name: value for name, value in plain(tool).items() if name not in ("format", *MCP_FIELDS, *SECRETS)}
    described = {} if tool["description"] is None else {"description": tool["description"]}
    return {"type": CUSTOM, "name": tool["name"], **described, "format": tool["format"] or {"type": "text"}}


def format_of(tool: ResponsesTool, path: str) -> CustomFormat:
    """A custom tool's format, checked."""
    form = CustomFormat("text") if tool.format is None else checked(CustomFormat, tool.format, f"{path}.format")
    for name in ("syntax", "definition") if form.type == "grammar" else ():
        if not getattr(form, name):
            raise bad_request(f"{path}.format.{name} is missing.", f"{path}.format.{name}")
    return form


def as_function(tool: ResponsesTool, path: str) -> ResponsesTool:
    """The function as which the model is offered a custom tool."""
    form = format_of(tool, path)
    said, text = tool.description or "", {"type": "string"}
    if form.type == "grammar" and form.syntax:
        said = f"{said}\n\nIts {INPUT} keeps to this {SYNTAXES[form.syntax]}:\n{form.definition}".lstrip()
    if form.syntax == "regex" and form.definition:
        text["pattern"] = f"^(?:{form.definition})$"
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    return ResponsesTool("function", tool.name, said or None, parameters, "pattern" in text or None)


def forced(tool: ResponsesTool, path: str) -> Object:
    """The part of the chat request that asks for a call of this tool."""
    form = format_of(tool, path)
    if form.type == "grammar" and form.syntax:
        return {"tool_choice": "none", "structured_outputs": {OUTPUTS[form.syntax]: form.definition}}
    return {"tool_choice": {"type": "function", "function": {"name": tool.name}}}


def arguments_of(given: str) -> str:
    """The arguments of the function that a custom tool is, for an input."""
    return json.dumps({INPUT: given}, ensure_ascii=False)


class InputText:
    """A call's arguments as they come: the text in them. Arguments of another form are given out as they are.

    What has come out depends on the text alone, and not on how it was cut.
    """

    def __init__(self) -> None:
        self._state: Literal["head", "text", "over", "other"] = "head"
        self._head: list[str] = []  # what came of it
        self._known = 0  # of HEAD
        self._rest = ""  # the beginning of an escape

    def feed(self, arguments: str) -> str:
        """The text that this completes."""
        if self._state == "head":
            arguments = self._behind_head(arguments)
        if self._state == "text":
            return self._text(arguments)
        return arguments if self._state == "other" else ""

    def _behind_head(self, arguments: str) -> str:
        """What follows the head; all that came, where it is none."""
        for at, char in enumerate(arguments):
            if char == HEAD[self._known]:
                self._known += 1
            elif char == "}" and self._known == 1:  # {}: no input
                self._state = "over"
                return ""
            elif not (char.isspace() and self._known in BETWEEN):
                self._state = "other"
                return "".join(self._head) + arguments
            if self._known == len(HEAD):
                self._state = "text"
                return arguments[at + 1 :]
        self._head.append(arguments)
        return ""

    def _text(self, more: str) -> str:
        text, said = self._rest + more, []
        while True:
            end = match.end() if (match := PIECES.match(text)) else 0
            said.append(_unescaped(text[:end]))
            text = text[end:]
            if text.startswith('"'):
                self._state = "over"
                return "".join(said)
            if len(text) < LONGEST_ESCAPE:
                self._rest = text
                return "".join(said)
            said.append(UNKNOWN)  # half a character without the other half, or no escape at all
            text = text[6 if HALF.match(text) else 2 :]


def _unescaped(text: str) -> str:
    """What a JSON string says; of an escape that JSON does not know both characters."""
    return str(json.loads(f'"{ESCAPE.sub(_escape, text)}"', strict=False))


def _escape(found: re.Match[str]) -> str:
    if HALF.fullmatch(found[0]):
        return UNKNOWN
    return found[0] if found[0][1] in '"\\/bfnrtu' else f"\\{found[0]}"
