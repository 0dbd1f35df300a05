"""System messages that a template refuses, at all or behind the beginning, or leaves out: the user says them.

Agents send them amid conversations, and OpenAI's and Anthropic's models take them anywhere.
"""

from __future__ import annotations

from functools import reduce
from itertools import takewhile
from typing import Any

from .alternation import alternating, joined
from .names import SYSTEM


def said_by_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The conversation whose system, and developer, speak once and first; None if they do.

    What the user says before or behind it becomes one message with it: some templates want turns to alternate.
    """
    said: list[dict[str, Any]] = []
    first, moved = True, False  # has the system alone spoken? does the last one end with what it said?
    for message in messages:
        last = said[-1] if said else {}
        first = first and _is_system(message)
        later = _is_system(message) and not first
        users = last.get("role") == "user" and (later or (moved and message.get("role") == "user"))
        if users or (first and last.get("role") == message.get("role")):
            said[-1] = joined(last, message)
        else:
            said.append({**message, "role": "user"} if later else message)
        moved = later
    return None if said == messages else said


def first_as_one(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The conversation with what the system and the developer say first as one message; None if it is."""
    count = sum(1 for _ in takewhile(_is_system, messages))
    return None if count < 2 else [reduce(joined, messages[:count]), *messages[count:]]


def first_said_by_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The conversation that begins with the user saying what the system does; None if that says nothing there."""
    if not messages or not _is_system(messages[0]):
        return None
    said = [{**messages[0], "role": "user"}, *messages[1:]]
    return alternating(said) or said


def _is_system(message: dict[str, Any]) -> bool:
    return message.get("role") in SYSTEM
