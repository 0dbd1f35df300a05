"""The answers of /v1/responses, /v1/messages, /inference/v1/generate and LM Studio's /api/v0/models as msgspec structs,
for /openapi.json.

The first two are other people's dialects: what is in them here is there, and they may say more.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from .answers import ChatLogprobs, Finish, Metrics, PromptLogprobs, Said, Timings, Usage

Object = dict[str, Any]


class Response(msgspec.Struct):
    """As OpenAI's clients read it."""

    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[Object]
    error: Object | None


class CompactedResponse(msgspec.Struct):
    """The user's messages and an item of type `compaction`: the input that a conversation goes on with."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Object]
    usage: Object


class ResponseEvent(msgspec.Struct):
    type: str
    sequence_number: int


class ResponseInputTokens(Said):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Deleted(Said):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class Conversation(Said):
    """As OpenAI's clients read it."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(Said):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class InputItems(msgspec.Struct):
    object: Literal["list"]
    data: list[Object]
    first_id: str | None
    last_id: str | None
    has_more: bool


class AnthropicUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int


class AnthropicMessage(msgspec.Struct):
    """As Anthropic's clients read it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Object]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage


class AnthropicEvent(msgspec.Struct):
    type: str


class AnthropicErrorDetail(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct):
    type: Literal["error"]
    error: AnthropicErrorDetail


class OriginalTokens(Said):
    original_input_tokens: int


class InputTokens(Said):
    input_tokens: int
    context_management: OriginalTokens | UnsetType = UNSET  # where that was asked for: before what it takes away


class GeneratedChoice(Said):
    index: int
    token_ids: list[int]
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: int | str | None


class Generated(Said):
    id: str
    object: str
    created: int
    model: str
    request_id: str
    choices: list[GeneratedChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class GeneratedPart(Said):
    """One event."""

    id: str
    object: str
    created: int
    model: str
    choices: list[GeneratedChoice]
    request_id: str | UnsetType = UNSET  # not of the event with the usage of all
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class LmStudioModel(Said, kw_only=True):
    id: str
    object: Literal["model"]
    type: Literal["llm", "vlm", "embeddings"]
    publisher: str
    arch: str
    compatibility_type: Literal["gguf", "mlx"]
    quantization: str
    state: Literal["loaded", "loading", "not-loaded"]
    max_context_length: int
    loaded_context_length: int | UnsetType = UNSET  # of one that is loaded
    capabilities: list[str]


class LmStudioModels(Said):
    object: Literal["list"]
    data: list[LmStudioModel]


class LmStudioKey(Said, kw_only=True):
    """What is of texts alone is left out of what pools."""

    type: Literal["llm", "embedding"]
    publisher: str
    key: str
    display_name: str
    architecture: str | UnsetType | None = UNSET
    quantization: Object
    size_bytes: int
    params_string: str | None
    loaded_instances: list[Object]
    max_context_length: int
    format: Literal["gguf", "mlx"] | None
    capabilities: dict[str, bool] | UnsetType = UNSET
    description: str | UnsetType | None = UNSET


class LmStudioKeys(Said):
    models: list[LmStudioKey]
