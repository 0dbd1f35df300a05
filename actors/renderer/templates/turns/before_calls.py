"""What an assistant has said and thought before it called tools, for templates that take one of the two there.

gpt-oss's raises where both are, and this server's own answers have both: analysis, and a preamble for the user.
"""

from __future__ import annotations

from typing import Any

from .names import REASONING, reasoning_of


def thought_before_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The conversation with both in the thinking of such messages; None if there are none."""
    changed = [_thought(message) for message in messages]
    return None if all(one is other for one, other in zip(changed, messages, strict=True)) else changed


def _thought(message: dict[str, Any]) -> dict[str, Any]:
    content, reasoning = message.get("content"), reasoning_of(message)
    if not (message.get("tool_calls") and content and reasoning):
        return message
    texts = [content] if isinstance(content, str) else [str(part.get("text") or "") for part in content]
    rest = {name: value for name, value in message.items() if name not in REASONING}
    return rest | {"content": "", REASONING[0]: "\n\n".join([reasoning, *texts])}
