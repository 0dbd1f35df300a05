"""Neighbours of one role as one message, for templates whose turns must alternate, as Mistral's and Gemma's.

Agents send what they know and what was asked as messages of their own, and tell of more beside the results of tools.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .names import REASONING, reasoning_of


def alternating(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The conversation in turns; what a user says behind a result is part of it. None if they are some."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if turns and _goes_on(turns[-1], message):
            calls = {"tool_calls": message["tool_calls"]} if message.get("tool_calls") else {}
            turns[-1] = joined(turns[-1], message) | calls
        else:
            turns.append(message)
    return None if len(turns) == len(messages) else turns


def _goes_on(last: dict[str, Any], message: dict[str, Any]) -> bool:
    match last.get("role"), message.get("role"):
        case "assistant", "assistant":
            return not last.get("tool_calls")
        case "user", "user":
            return True
        case "tool", "user":  # templates that want turns write results as texts
            return all(isinstance(part, str) or "text" in part for part in _parts(message.get("content") or ""))
    return False


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The first message with what the second one says and has thought behind its own."""
    first = _with_thoughts(first, reasoning_of(second))
    contents = [message.get("content") or "" for message in (first, second)]
    if all(isinstance(content, str) for content in contents):
        return {**first, "content": "\n\n".join(filter(None, contents))}
    return {**first, "content": [part for content in contents for part in _parts(content)]}


def _with_thoughts(message: dict[str, Any], more: str | None) -> dict[str, Any]:
    if not more:
        return message
    rest = {name: value for name, value in message.items() if name not in REASONING}
    return rest | {REASONING[0]: "\n\n".join(filter(None, [reasoning_of(message), more]))}


def _parts(content: Any) -> Iterable[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
