"""The bodies of POST /v1/messages and /v1/messages/count_tokens, and the blocks in them, as msgspec structs.

null means absent for every field. `cache_control` may stand anywhere, and is ignored: prefixes are cached anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import msgspec

from actorserve.actors.protocol.sampling.fields import SAMPLING_FIELDS, SamplingFields
from actorserve.actors.protocol.sampling.ranges import INT32, Range

Object = dict[str, Any]

OTHERS = ("chat_template_kwargs", "structured_outputs", "priority", "request_id")  # the chat request's
NAMES = {  # the chat request's fields that have another name here
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "thinking_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "user": "metadata.user_id",
}


class MediaSourceBlock(msgspec.Struct):
    """Where a picture is: all of it in base64, or its address; or what a document says."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: str | list[Object] | None = None


class ContentBlock(msgspec.Struct):
    """A content block; which fields it must have depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Object | None = None
    tool_use_id: str | None = None
    content: str | list[Object] | Object | None = None  # an object: what a tool of another server's gave
    is_error: bool | None = None
    source: MediaSourceBlock | str | None = None  # a text: where a search_result was found
    title: str | None = None  # of a document, and these two
    context: str | None = None
    citations: Any = None
    tool_name: str | None = None  # of a tool_reference
    tool: ToolChange | None = None  # of a tool_addition or a tool_removal


class ToolChange(msgspec.Struct):
    """Which tool may be called from there on, or may not: one of the request's, or one that stands here."""

    type: Literal["tool_reference", "tool_definition"]
    name: str | None = None
    definition: AnthropicTool | None = None


class AnthropicTurn(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class ThinkingConfig(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None


class AnthropicTool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Object | None = None
    strict: bool | None = None
    defer_loading: bool | None = None  # it is offered at once, as all others are


class AnthropicToolChoice(msgspec.Struct):
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


class Amount(msgspec.Struct):
    """A number of something: of `input_tokens`, `tool_uses` or `thinking_turns`."""

    type: str
    value: int | None = None


class ContextEdit(msgspec.Struct):
    """What of a long conversation the model is not told again; which fields it has depends on its type."""

    type: str
    trigger: Amount | None = None
    keep: Amount | Literal["all"] | None = None
    clear_at_least: Amount | None = None
    clear_tool_inputs: bool | list[str] | None = None
    exclude_tools: list[str] | None = None


class ContextManagement(msgspec.Struct):
    edits: list[ContextEdit] | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens: all that says something about the prompt."""

    messages: list[AnthropicTurn]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None  # the older place of `output_config.format`
    context_management: ContextManagement | None = None

    # known, and refused
    compaction: Any = None
    container: Any = None
    fallbacks: Any = None
    inference_geo: str | None = None
    mcp_servers: Any = None
    speed: str | None = None
    thread: Any = None


if TYPE_CHECKING:
    _CountRequestWithSampling = CountRequest  # structs have one base with fields: these are read by their names alone
else:
    _SAMPLING = [(name, get_type_hints(SamplingFields, include_extras=True)[name], None) for name in SAMPLING_FIELDS]
    _CountRequestWithSampling = msgspec.defstruct("_Sampled", _SAMPLING, bases=(CountRequest,), kw_only=True)


class MessagesRequest(_CountRequestWithSampling, kw_only=True):
    """POST /v1/messages. What there is of sampling is as everywhere, but for the temperature."""

    max_tokens: Annotated[int, Range(1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float | None, Range(0, 1)] = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    # not Anthropic's (OTHERS)
    chat_template_kwargs: Object | None = None  # for templates that know more than `thinking`
    structured_outputs: Any = None
    priority: Annotated[int | None, INT32] = None
    request_id: str | None = None


class BatchedMessage(msgspec.Struct):
    """One of a batch."""

    custom_id: str
    params: MessagesRequest


class MessageBatchRequest(msgspec.Struct):
    """POST /v1/messages/batches. It is decoded one by one (batches/requests.py), and what is asked once it is asked."""

    requests: list[BatchedMessage]
