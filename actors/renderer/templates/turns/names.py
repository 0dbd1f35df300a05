"""Names in messages that mean one thing: of roles, of fields, of parts."""

from __future__ import annotations

from typing import Any

SYSTEM = ("system", "developer")  # roles whose contents few templates take in parts, as those of results
RESULTS = ("tool", "function")  # roles
REASONING = ("reasoning_content", "thinking", "reasoning")  # one thing under three names; templates read any
THINKING = "thinking"  # a part of a content, as Mistral's clients send back what a model has thought


def reasoning_of(message: dict[str, Any]) -> str | None:
    """What its role has thought before it said the content, if that is a text."""
    return next((message[name] for name in REASONING if isinstance(message.get(name), str)), None)
