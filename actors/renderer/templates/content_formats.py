"""Which forms of contents and arguments a template is written for, found in its text; messages brought into them.

OpenAI's clients send a content as text or as parts, and a call's arguments as JSON text. A template may read the
contents in one of these forms only, and most templates want arguments as objects, but not all. Some know no role
"developer", and leave such messages out; some take ids of calls of nine characters only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from jinja2 import nodes

from ...protocol.topics.arguments import ObjectText
from .analysis import Uses
from .problem import TemplateProblem
from .turns.later_system import first_as_one, first_said_by_user, said_by_user
from .turns.names import REASONING, RESULTS, SYSTEM, THINKING
from .turns.rounds import answered_in_order, one_by_one

SHORT = 9  # characters of a call's id, in Mistral's templates


class Reads(NamedTuple):
    """Which forms of a message a template is written for."""

    parts: bool  # of a content: it loops over them, or picks some
    text: bool  # of a content: it does not, or asks first whether it is a string
    arguments_text: bool = False  # of a call: it puts them into its text as they are
    asks_none: bool = False  # it asks whether there is a content by comparing it with none
    developer: bool = False  # of a role: it knows this one; by probe.py, if only to leave it out
    short_ids: bool = False  # of a call: it asks whether they have SHORT characters, no more and no fewer
    thinking: bool = False  # of a content's part: it asks whether it is one of this type
    calls_for_none: bool = False  # of a message: it writes calls only where the content is none
    results: bool = False  # of a tool's result: it writes each part's text itself; this and what follows by probe.py
    one_call: bool = False  # of a message: it writes the first of its calls, or refuses several
    one_system: bool = False  # of several messages of the system amid others, it leaves out some
    one_first: bool = False  # of the system and the developer, who speak first, it leaves out one
    first_system: bool = False  # of the system, it leaves out what does not stand first
    system_beside_user: bool = False  # of the system, it writes nothing where the user has not spoken last
    thinking_parts: bool = False  # of thinking: it writes parts of a content, and no field of the message


def read_forms(template: nodes.Template, content_format: str = "auto") -> Reads:
    """Find it out from what the template does with them; `content_format` overrides it for contents."""
    content, arguments = Uses(template, "content"), Uses(template, "arguments")
    parts = content.loops_over_parts or content.picks
    text = content.asks("string") or not parts
    if content_format != "auto":
        parts, text = content_format == "openai", content_format == "string"
    as_object = arguments.loops or arguments.asks("string", "mapping") or arguments.is_mapping
    as_text = arguments.is_text or (arguments.is_text_by_name and not arguments.is_filtered("tojson"))
    developer = any(const.value == "developer" for const in template.find_all(nodes.Const))
    short, thinking = _asks_short(template), _asks_for_thinking(template)
    for_none = Uses(template, "tool_calls").loops_where_none(content)
    return Reads(parts, text, as_text and not as_object, content.asks("none"), developer, short, thinking, for_none)


def _asks_for_thinking(template: nodes.Template) -> bool:
    """It compares something with the type's name."""
    compared = (op.expr for compare in template.find_all(nodes.Compare) for op in compare.ops)
    return any(isinstance(side, nodes.Const) and side.value == THINKING for side in compared)


def _asks_short(template: nodes.Template) -> bool:
    for compare in template.find_all(nodes.Compare):
        by_length = isinstance(compare.expr, nodes.Filter) and compare.expr.name in ("length", "count")
        sides = [op.expr for op in compare.ops if op.op in ("eq", "ne")]
        if by_length and any(isinstance(side, nodes.Const) and side.value == SHORT for side in sides):
            return True
    return False


def fit_all(messages: Iterable[dict[str, Any]], reads: Reads) -> list[dict[str, Any]]:
    """Copies of messages, as the template reads them."""
    messages = answered_in_order([*messages])
    if reads.one_first:
        messages = first_as_one(messages) or messages
    if reads.first_system or (reads.one_system and sum(one.get("role") in SYSTEM for one in messages) > 1):
        messages = said_by_user(messages) or messages
    if reads.system_beside_user and messages[-1].get("role") != "user":
        messages = first_said_by_user(messages) or messages
    if reads.one_call:
        messages = one_by_one(messages)
    fitted: list[dict[str, Any]] = []
    for message in messages:
        made = fit(message, reads)
        if reads.developer or made.get("role") != "developer":
            fitted += _before_calls(made) if reads.calls_for_none else [made]
            continue
        before = fitted[-1].get("content") if fitted and fitted[-1].get("role") == "system" else None
        content = made.get("content")
        if isinstance(before, str) and isinstance(content, str):  # many templates take one system message only
            fitted[-1]["content"] = f"{before}\n\n{content}"
        else:
            fitted.append({**made, "role": "system"})
    return fitted


def fit(message: dict[str, Any], reads: Reads) -> dict[str, Any]:
    """A copy of a message as the template reads it, without what is null, and without a list of no calls."""
    if not isinstance(message, dict):
        raise TemplateProblem(f"messages: each must be an object, not {type(message).__name__}")
    message = {name: value for name, value in message.items() if value is not None}
    if not message.get("tool_calls", True):
        del message["tool_calls"]
    if message.get("role") in RESULTS:
        message.setdefault("content", "")  # templates write a null as None
    if not reads.thinking:
        message = _without_thinking(message)
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    if reads.thinking_parts and isinstance(reasoning, str):
        message["content"] = _with_thinking(message.get("content"), reasoning)
    content = message.get("content")
    if not reads.text and isinstance(content, str):
        message["content"] = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        message["content"] = _fit_parts(message, [_fit_part(part) for part in content], reads)
    if "tool_calls" in message:
        message["tool_calls"] = [_fit_call(call, reads) for call in message["tool_calls"]]
        if reads.calls_for_none and not message.get("content"):
            message["content"] = None
    if reads.short_ids and "tool_call_id" in message:
        message["tool_call_id"] = short_id(str(message["tool_call_id"]))
    return message


def _before_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A text beside calls, of which the template would write the text alone, as a message of its own before them."""
    if not (message.get("tool_calls") and message.get("content")):
        return [message]
    said = {name: value for name, value in message.items() if name != "tool_calls"}
    return [said, {"role": message.get("role"), "content": None, "tool_calls": message["tool_calls"]}]


def with_contents(messages: list[dict[str, Any]], content: str | None) -> list[dict[str, Any]] | None:
    """The messages with this content where those that need none have none; None if all have one."""
    lacking = [message.get("role") == "assistant" and "content" not in message for message in messages]
    if not any(lacking):
        return None
    return [{**one, "content": content} if lacks else one for one, lacks in zip(messages, lacking, strict=True)]


def _fit_parts(message: dict[str, Any], parts: list[dict[str, Any]], reads: Reads) -> list[dict[str, Any]] | str:
    """The parts, or their texts. Many a template loops over those of a user alone, and writes others as Python does, or
    the first of them. What one that loops over others, too, is given as one text has nothing between its parts, either.
    """
    if not reads.parts:
        return "\n".join(map(_as_text, parts))
    result = message.get("role") in RESULTS
    one = reads.text and ((result and not reads.results) or message.get("role") in SYSTEM or "tool_calls" in message)
    if not one or any(part.get("type") != "text" for part in parts):
        return parts
    return ("\n" if result else "").join(map(_as_text, parts))


def _without_thinking(message: dict[str, Any]) -> dict[str, Any]:
    """Parts that are thinking become the message's own, where the template knows no such parts."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    thought = [part for part in content if isinstance(part, dict) and part.get("type") == THINKING]
    if not thought:
        return message
    rest = [part for part in content if part not in thought]
    said = "".join(_thought(part.get(THINKING)) for part in thought)
    return {REASONING[0]: said, **message, "content": rest or ""}


def _with_thinking(content: Any, thought: str) -> Any:
    """Parts that begin with it; as they are where they have some."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    if not thought or any(isinstance(part, dict) and part.get("type") == THINKING for part in parts):
        return content
    return [{"type": THINKING, "thinking": thought}, *parts]


def _thought(given: Any) -> str:
    """A text, or a list of parts that are texts."""
    if isinstance(given, list):
        return "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in given)
    return str(given)


def _as_text(part: dict[str, Any]) -> str:
    """A part for a template that reads texts alone; of a picture, what stands for it."""
    return str(part.get("text", part.get("placeholder", "")))


def _fit_part(part: Any) -> dict[str, Any]:
    """Text has other types in other places of OpenAI's APIs; templates know one."""
    if not isinstance(part, dict):
        return {"type": "text", "text": part}
    if part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return {**part, "type": "text"} if part.get("type") in ("input_text", "output_text") else dict(part)


def short_id(given: str) -> str:
    """The same for the same id, which a call and its result have."""
    if len(given) == SHORT and given.isalnum():
        return given
    return hashlib.sha256(given.encode(errors="replace")).hexdigest()[:SHORT]


def _fit_call(call: dict[str, Any], reads: Reads) -> dict[str, Any]:
    if reads.short_ids and "id" in call:
        call = {**call, "id": short_id(str(call["id"]))}
    if "function" not in call:  # some templates read name and arguments of the call itself
        return _fit_arguments(call, reads)
    return {**call, "function": _fit_arguments(call["function"] or {}, reads)}


def _fit_arguments(function: dict[str, Any], reads: Reads) -> dict[str, Any]:
    """As text, or as the object that others read, which any arguments are then: as servers of OpenAI's API have it."""
    arguments = function.get("arguments")
    if reads.arguments_text:
        if not isinstance(arguments, str):
            arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    elif isinstance(arguments, str):
        arguments = _object(arguments)
    elif not isinstance(arguments, dict):
        arguments = {}
    return {**function, "arguments": arguments}


def _object(text: str) -> dict[str, Any]:
    """What the text says, if that is an object; of one that was cut off at max_tokens, as agents send back the model's
    own call, what was whole.
    """
    try:
        found = json.loads(text, strict=False)  # models write line breaks into texts as they are
    except ValueError:
        begun = ObjectText()
        begun.feed(text)
        found = json.loads(begun.object())
    return found if isinstance(found, dict) else {}
