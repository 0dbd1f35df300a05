"""The body of Cohere's chat, version 1, as msgspec structs. null means absent for every field."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..schemas import CohereChatFields, Object


class CohereToolUse(msgspec.Struct):
    """A call, as the model has made it."""

    name: str
    parameters: Object = msgspec.field(default_factory=dict)


class CohereToolResult(msgspec.Struct):
    call: CohereToolUse
    outputs: list[Any]


class CoherePast(msgspec.Struct):
    """A turn of the history."""

    role: Literal["USER", "CHATBOT", "SYSTEM", "TOOL"]
    message: str | None = None
    tool_calls: list[CohereToolUse] | None = None
    tool_results: list[CohereToolResult] | None = None


class CohereParameter(msgspec.Struct):
    type: str  # as Python has it, or JSON's schemas
    description: str | None = None
    required: bool | None = None


class CohereTool(msgspec.Struct):
    name: str
    description: str | None = None
    parameter_definitions: dict[str, CohereParameter] | None = None


class CohereChatV1Request(CohereChatFields, kw_only=True):
    """POST /v1/chat."""

    message: str | None = None  # may be left out where tool_results are given
    preamble: str | None = None
    chat_history: list[CoherePast] | None = None
    documents: list[Object] | None = None
    tools: list[CohereTool] | None = None
    tool_results: list[CohereToolResult] | None = None
    force_single_step: bool | None = None  # with tool_results: the model calls nothing more
    safety_mode: Literal["CONTEXTUAL", "STRICT", "NONE"] | None = None
    citation_quality: str | None = None  # from here on: only what asks for nothing
    prompt_truncation: str | None = None
    connectors: list[Object] | None = None
    conversation_id: str | None = None
    search_queries_only: bool | None = None
    raw_prompting: bool | None = None
    max_input_tokens: int | None = None
    num_generations: int | None = None
