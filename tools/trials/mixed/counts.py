"""How a client asks how many tokens a prompt has, before it sends it: the answer's usage has to tell the same."""

from __future__ import annotations

from typing import Any, NamedTuple

from .asked import Asked

CHAT = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
MESSAGES = ("messages", "system", "tools", "tool_choice", "thinking", "output_config")
RESPONSES = ("input", "instructions", "tools", "tool_choice", "text", "parallel_tool_calls")
OTHERWISE = {"documents", "reasoning_effort", "truncate_prompt_tokens", "truncation", "add_special_tokens"}


class Count(NamedTuple):
    path: str
    body: dict[str, Any]
    name: str  # of the number


def count_of(asked: Asked) -> Count | None:
    """None where the prompt has something that the question has no field for."""
    if OTHERWISE & {*asked.body} or asked.path.endswith("/batch"):
        return None
    known = {
        "chat": ("/tokenize", CHAT, "count"),
        "messages": ("/v1/messages/count_tokens", MESSAGES, "input_tokens"),
        "responses": ("/v1/responses/input_tokens", RESPONSES, "input_tokens"),
    }
    if asked.door not in known or (asked.door == "chat" and asked.body.get("tool_choice") == "none"):
        return None
    path, names, name = known[asked.door]
    model = {"model": "actorserve-demo"} if asked.door == "responses" else {}
    return Count(path, {one: asked.body[one] for one in names if one in asked.body} | model, name)
