"""Which forms of contents and arguments a template is written for, found in its text; messages brought into them.

OpenAI's clients send a content as text or as parts, and a call's arguments as JSON text. A template may read the
contents in one of these forms only, and most templates want arguments as objects, but not all.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from jinja2 import nodes

from .problem import TemplateProblem
from .uses import Uses

REASONING = ("reasoning_content", "thinking", "reasoning")  # one thing under three names; templates read any
CONTENT_FORMATS = ("auto", "string", "openai")


class Reads(NamedTuple):
    """Which forms of a message a template is written for."""

    parts: bool  # of a content: it loops over them, or picks some
    text: bool  # of a content: it does not, or asks first whether it is a string
    arguments_text: bool = False  # of a call: it puts them into its text as they are
    asks_none: bool = False  # it asks whether there is a content by comparing it with none


def read_forms(template: nodes.Template, content_format: str = "auto") -> Reads:
    """Find it out from what the template does with them; `content_format` overrides it for contents."""
    content, arguments = Uses(template, "content"), Uses(template, "arguments")
    parts = content.loops or content.picks
    text = content.asks("string") or not parts
    if content_format != "auto":
        parts, text = content_format == "openai", content_format == "string"
    as_object = arguments.loops or arguments.asks("string", "mapping") or arguments.is_mapping
    as_text = arguments.is_text or (arguments.is_text_by_name and not arguments.is_filtered("tojson"))
    return Reads(parts, text, as_text and not as_object, content.asks("none"))


def fit(message: dict[str, Any], reads: Reads, keep_null: bool = False) -> dict[str, Any]:
    """A copy of a message, without fields that are null (but a content, if so told), as the template reads it."""
    if not isinstance(message, dict):
        raise TemplateProblem(f"messages: each must be an object, not {type(message).__name__}")
    kept = {"content"} if keep_null else ()
    message = {name: value for name, value in message.items() if value is not None or name in kept}
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    content = message.get("content")
    if not reads.text and isinstance(content, str):
        message["content"] = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        copied = [dict(part) if isinstance(part, dict) else {"type": "text", "text": part} for part in content]
        message["content"] = copied if reads.parts else "\n".join(str(part.get("text", "")) for part in copied)
    if message.get("tool_calls"):
        message["tool_calls"] = [_fit_call(call, reads) for call in message["tool_calls"]]
    return message


def _fit_call(call: dict[str, Any], reads: Reads) -> dict[str, Any]:
    if "function" not in call:  # some templates read name and arguments of the call itself
        return _fit_arguments(call, reads)
    return {**call, "function": _fit_arguments(call["function"] or {}, reads)}


def _fit_arguments(function: dict[str, Any], reads: Reads) -> dict[str, Any]:
    arguments = function.get("arguments")
    if arguments is None or isinstance(arguments, str) == reads.arguments_text:
        return dict(function)
    if reads.arguments_text:
        return {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
    try:
        return {**function, "arguments": json.loads(arguments or "{}")}
    except ValueError:  # the model's own call, cut off at max_tokens: agents send it back as it came
        return dict(function)
