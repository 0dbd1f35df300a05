"""Request bodies of the generating endpoints, as msgspec structs: names and types. Ranges are in validation.py.

null means absent for every field. What stands in NOT_BUILT is known to clients and not built yet: it is refused by name
when it asks for something, and accepted where its value changes nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Object = dict[str, Any]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """One turn. Everything else in it is passed on to the chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart | str] | None = None
    tool_calls: list[Object] | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """What chat and completions have in common."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    user: str | None = None
    metadata: Any = None  # labels for who keeps answers; nobody does here

    # known, and refused where they ask for something (NOT_BUILT)
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Object | None = None
    logprobs: Any = None
    prompt_logprobs: Any = None
    best_of: int | None = None
    echo: bool | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    spaces_between_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    response_format: Any = None
    structured_outputs: Any = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: Any = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    store: bool | None = None
    service_tier: str | None = None
    stream_interval: int | None = None


class ChatRequest(GenerationFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: msgspec.Raw
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    documents: list[Object] | None = None
    reasoning_effort: str | None = None

    tools: list[Object] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None  # says how tools are called, and they are refused
    include_reasoning: bool | None = None
    top_logprobs: int | None = None
    chat_template: str | None = None
    functions: list[Object] | None = None


class CompletionRequest(GenerationFields, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]] | None = None

    suffix: str | None = None
    prompt_embeds: Any = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize."""

    model: str | None = None
    prompt: str | None = None
    messages: msgspec.Raw = msgspec.Raw()
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    return_token_strs: bool | None = None

    tools: list[Object] | None = None
    chat_template: str | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


NOTHING: tuple[object, ...] = (None, False, 0, "", [], {})
NOT_BUILT: dict[str, tuple[object, ...]] = {  # field: the values that change nothing
    "frequency_penalty": NOTHING,
    "presence_penalty": NOTHING,
    "repetition_penalty": (None, 1),
    "logit_bias": NOTHING,
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None, False),
    "echo": NOTHING,
    "use_beam_search": NOTHING,
    "length_penalty": (None, 1),
    "spaces_between_special_tokens": (None, True),
    "allowed_token_ids": NOTHING,
    "bad_words": NOTHING,
    "response_format": (None, {"type": "text"}),
    "structured_outputs": NOTHING,
    "return_token_ids": NOTHING,
    "return_tokens_as_token_ids": NOTHING,
    "cache_salt": NOTHING,
    "kv_transfer_params": NOTHING,
    "thinking_token_budget": (None,),
    "repetition_detection": NOTHING,
    "store": NOTHING,
    "service_tier": (None, "auto", "default"),
    "stream_interval": (None, 1),
    "include_reasoning": (None, True),
    "tools": NOTHING,
    "tool_choice": (None, "none", "auto"),
    "chat_template": NOTHING,
    "functions": NOTHING,
    "suffix": NOTHING,
    "prompt_embeds": NOTHING,
}
