"""A request as a token-in, token-out engine takes it, as vLLM has it: what /render makes is a body of
/inference/v1/generate, and what /derender takes is the answer to that (derendering.py). Knows no HTTP.
"""

from __future__ import annotations

from typing import Any

import msgspec

from actorserve.actors.protocol.topics.prompts import ChatPrompt, Prompt

from ..errors import bad_request
from ..generation.fields.sampling import max_tokens_of
from ..settings import Settings
from .schemas import (
    AllowedTools,
    ChatRequest,
    GenerateParameters,
    GenerationFields,
    NamedFunction,
    NamedTool,
)
from .thinking import budget_field
from .token_ids import OWN

NOT_TOKENS = (
    *(*OWN, "return_prompt_text", "return_token_offsets", "user", "metadata", "store", "service_tier"),
    *("use_beam_search", "truncate_prompt_tokens", "truncation_side"),  # a prompt is cut before it is rendered
    "return_progress",
)
Placed = tuple[list[int], list[tuple[int, int]] | None]  # ids of a prompt, and where each stands in its text


def check_renders(body: GenerationFields, prompt: Prompt) -> None:
    """400 for what token ids and sampling parameters do not say."""
    if isinstance(prompt, ChatPrompt) and prompt.media:
        raise bad_request("messages: pictures and sounds are no token ids, and cannot be rendered.", "messages")
    if body.use_beam_search:
        raise bad_request("use_beam_search cannot be rendered.", "use_beam_search")
    if isinstance(body, ChatRequest):
        if isinstance(body.tool_choice, NamedTool | AllowedTools) or body.tool_choice == "required":
            text = "tool_choice: what enforces it is no sampling parameter; it can be rendered with auto or none alone."
            raise bad_request(text, "tool_choice")
        if isinstance(body.function_call, NamedFunction):
            raise bad_request("function_call: a function by its name cannot be rendered.", "function_call")
        if body.thinking_token_budget is not None:
            name = budget_field(body)
            raise bad_request(f"{name} cannot be rendered.", name)


def rendered(
    body: GenerationFields, prompt: Placed, request_id: str, settings: Settings, capped: bool = False
) -> dict[str, Any]:
    """The body of /inference/v1/generate that asks for the same. `capped`: for no more than there is room for."""
    tokens, offsets = prompt
    names = [name for name in GenerateParameters.__struct_fields__ if name not in NOT_TOKENS]
    params = {name: value for name in names if (value := getattr(body, name, None)) is not None}
    limit, room = max_tokens_of(body), settings.max_model_len - len(tokens)
    if limit is None:
        most = settings.sampling_defaults.get("max_new_tokens")
        limit = room if most is None else min(room, int(most))
    elif capped:
        limit = min(limit, room)
    params["max_tokens"] = max(1, limit)
    if isinstance(body, ChatRequest):
        params.pop("logprobs", None)
        if body.logprobs:
            params["logprobs"] = body.top_logprobs or 0
    return {
        "request_id": request_id,
        "token_ids": tokens,
        "token_offsets": offsets,
        "sampling_params": msgspec.to_builtins(params),
        "model": body.model or settings.served[0],
        "stream": bool(body.stream),
        "stream_options": msgspec.to_builtins(body.stream_options) if body.stream else None,
        "cache_salt": body.cache_salt,
        "priority": body.priority or 0,
    }
