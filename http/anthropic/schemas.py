"""The bodies of POST /v1/messages and /v1/messages/count_tokens, and the blocks in them, as msgspec structs.

null means absent for every field. `cache_control` may stand anywhere, and is ignored: prefixes are cached anyway.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Object = dict[str, Any]

OTHERS = (  # fields of a MessagesRequest that are the chat request's, and go there as they are
    *("min_p", "seed", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens"),
    *("skip_special_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "bad_words"),
    *("allowed_token_ids", "structured_outputs", "cache_salt", "priority", "request_id"),
)


class Block(msgspec.Struct):
    """A content block; which fields it must have depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Object | None = None
    tool_use_id: str | None = None
    content: str | list[Object] | None = None
    is_error: bool | None = None


class Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Thinking(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class Tool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Object | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class JsonFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: Object


class OutputConfig(msgspec.Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class Metadata(msgspec.Struct):
    user_id: str | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens: all that says something about the prompt."""

    messages: list[Message]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None  # the older place of `output_config.format`

    # known, and refused
    compaction: Any = None
    container: Any = None
    context_management: Any = None
    fallbacks: Any = None
    inference_geo: str | None = None
    mcp_servers: Any = None
    speed: str | None = None
    thread: Any = None


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    chat_template_kwargs: Object | None = None  # not Anthropic's; for templates that know more than `thinking`

    # nor are these (OTHERS)
    min_p: float | None = None
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Object | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: Any = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None
