"""System messages that a template refuses, at all or behind the beginning, or leaves out: the user says them.

Agents send them amid conversations, and OpenAI's and Anthropic's models take them anywhere.
"""

from __future__ import annotations

from typing import Any

from .alternation import alternating, joined
from .names import SYSTEM


def said_by_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The conversation with one system message at most, its first; None if it has no others.

    What the user says before or behind it becomes one message with it: some templates want turns to alternate.
    """
    if not any(_is_system(message) for message in messages[1:]):
        return None
    said: list[dict[str, Any]] = []
    moved = False  # does the last one end with what the system said?
    for message in messages:
        last = said[-1] if said else {}
        later = bool(said) and _is_system(message)
        users = last.get("role") == "user" and (later or (moved and message.get("role") == "user"))
        if users or (later and _is_system(last)):
            said[-1] = joined(last, message)
        else:
            said.append({**message, "role": "user"} if later else message)
        moved = later and not _is_system(last)
    return said


def first_said_by_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The conversation that begins with the user saying what the system does; None if that says nothing there."""
    if not messages or not _is_system(messages[0]):
        return None
    said = [{**messages[0], "role": "user"}, *messages[1:]]
    return alternating(said) or said


def _is_system(message: dict[str, Any]) -> bool:
    return message.get("role") in SYSTEM
