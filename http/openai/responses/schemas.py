"""The body of POST /v1/responses and its items, as msgspec structs. null means absent for every field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from actorserve.actors.protocol.sampling.fields import SAMPLING_FIELDS, SamplingFields
from actorserve.actors.protocol.sampling.ranges import Range

from ...media.schemas import MediaFields
from ..schemas import Logprobs, Priority
from ..thinking import ThinkingBudget

Object = dict[str, Any]
MCP = "mcp"  # the type of tools that are called here

PASSED = (  # go to the chat request as they are: it has them under the same name
    *("model", "stream", "user", "metadata", "service_tier", "parallel_tool_calls", "chat_template_kwargs"),
    *("stop", "structured_outputs", "thinking_token_budget", "enable_thinking", "thinking_budget"),  # not OpenAI's
    *("priority", "request_id"),
    *SAMPLING_FIELDS,
)
NAMES = {  # the chat request's fields that have another name here
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "n_predict": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "truncate_prompt_tokens": "truncation",
    "logprobs": "include",
    "return_token_ids": "enable_response_messages",
    "return_prompt_text": "enable_response_messages",
}


class ReasoningConfig(msgspec.Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None  # the thinking itself is told as one
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # the older name of `summary`
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class TextFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Object | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesStreamOptions(msgspec.Struct):
    include_obfuscation: bool | None = None


class McpToolFilter(msgspec.Struct):
    """Some of an MCP server's tools."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class McpApproval(msgspec.Struct):
    """Which calls the client is asked about first."""

    always: McpToolFilter | None = None
    never: McpToolFilter | None = None


class ResponsesTool(msgspec.Struct):
    """Functions and custom tools are called by the client, also those in a namespace; those of MCP servers here."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None
    tools: list[Object] | None = None  # in a namespace
    format: Any = None  # of a custom tool's input: tools.custom.CustomFormat
    server_label: str | None = None  # of an MCP server, and all below
    server_url: str | None = None
    server_description: str | None = None
    allowed_tools: list[str] | McpToolFilter | None = None
    require_approval: Literal["always", "never"] | McpApproval | None = None
    headers: dict[str, str] | None = None
    authorization: str | None = None
    connector_id: str | None = None


class ResponsesToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[Object] | None = None


class ConversationName(msgspec.Struct):
    """A conversation that is kept."""

    id: str


class ContextRule(msgspec.Struct):
    """What becomes of a conversation that has become too long."""

    type: str
    compact_threshold: int | None = None  # tokens beyond which it is summed up


class ResponsesRequest(SamplingFields, kw_only=True):
    """POST /v1/responses."""

    input: str | list[Object] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    max_output_tokens: Annotated[int | None, Range(1)] = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int | None, Range(1)] = None  # of tools that are called here
    include: list[str] | None = None
    top_logprobs: Annotated[int | None, Logprobs] = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: list[ContextRule] | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    # known, and refused
    access_programs: Any = None
    moderation: Any = None
    prompt: Any = None

    chat_template_kwargs: Object | None = None
    stop: str | list[str] | None = None
    structured_outputs: Any = None
    thinking_token_budget: Annotated[int | None, Range(-1)] = None
    enable_thinking: bool | None = None
    thinking_budget: ThinkingBudget | None = None
    priority: Priority = None
    request_id: str | None = None
    enable_response_messages: bool | None = None  # the response has what the model read and wrote, as tokens

    @property
    def conversation_id(self) -> str | None:
        """The conversation that it goes on with."""
        return self.conversation.id if isinstance(self.conversation, ConversationName) else self.conversation


class ConversationRequest(msgspec.Struct):
    """POST /v1/conversations."""

    items: list[Object] | None = None
    metadata: dict[str, str] | None = None


class ConversationChange(msgspec.Struct):
    """POST /v1/conversations/{id}."""

    metadata: dict[str, str] | None


class ConversationItems(msgspec.Struct):
    """POST /v1/conversations/{id}/items."""

    items: list[Object]


class ItemPart(MediaFields):
    """Of a message's content, a reasoning item's, or a call's output."""

    type: str
    text: str | None = None
    refusal: str | None = None


class MessageItem(msgspec.Struct):
    """What has a role: an easy message, an input message, or an output message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ItemPart]


class ReasoningItem(msgspec.Struct):
    summary: list[ItemPart] | None = None
    content: list[ItemPart] | None = None
    encrypted_content: str | None = None


class CompactionItem(msgspec.Struct):
    """A summary that stands for what was said before it."""

    encrypted_content: str


class FunctionCallItem(msgspec.Struct):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomCallItem(msgspec.Struct):
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class McpCallItem(msgspec.Struct):
    """A call that was made here."""

    id: str
    name: str
    arguments: str
    output: str | None = None
    error: str | dict[str, Any] | None = None  # OpenAI's form of today; before it was a text


class McpApprovalRequestItem(msgspec.Struct):
    """A call that is to be made if the client says so."""

    id: str
    name: str
    arguments: str
    server_label: str


class McpApprovalResponseItem(msgspec.Struct):
    approval_request_id: str
    approve: bool
    reason: str | None = None


class FunctionCallOutputItem(msgspec.Struct):
    """Or a custom tool's."""

    call_id: str
    output: str | list[ItemPart]


class InputItemsQuery(msgspec.Struct):
    """Which of a response's input items, or of a conversation's items, are listed."""

    order: Literal["asc", "desc"] = "desc"
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    after: str | None = None  # the id of the item behind which the list begins
