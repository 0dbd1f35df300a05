"""The bodies of Cohere's API, version 2, as msgspec structs. null means absent for every field."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from actorserve.actors.protocol.sampling.fields import SamplingFields

Object = dict[str, Any]
EmbeddingType = Literal["float", "base64", "binary", "ubinary", "int8", "uint8"]


class CoherePart(msgspec.Struct):
    """A part of a content; which field it must have depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    image_url: Object | str | None = None
    document: Object | None = None


class CohereFunction(msgspec.Struct):
    name: str
    arguments: str | None = None


class CohereCall(msgspec.Struct):
    id: str
    function: CohereFunction


class CohereTurn(msgspec.Struct):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[CoherePart] | None = None
    tool_plan: str | None = None
    tool_calls: list[CohereCall] | None = None
    tool_call_id: str | None = None


class CohereThinking(msgspec.Struct):
    type: Literal["enabled", "disabled"]
    token_budget: int | None = None


class CohereFormat(msgspec.Struct):
    type: Literal["text", "json_object"]
    json_schema: Object | None = None
    schema: Object | None = None


class CohereCitations(msgspec.Struct):
    mode: str | None = None


class CohereDocument(msgspec.Struct):
    data: Object | str
    id: str | None = None


class CohereChatFields(SamplingFields, kw_only=True):
    """What a chat's body has in each version. What there is of sampling is as everywhere, though Cohere has less."""

    model: str | None = None
    stream: bool | None = None
    response_format: CohereFormat | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    seed: int | None = None
    k: int | None = None  # top_k
    p: float | None = None  # top_p
    priority: int | None = None


class CohereChatRequest(CohereChatFields, kw_only=True):
    """POST /v2/chat."""

    messages: list[CohereTurn]
    tools: list[Object] | None = None
    strict_tools: bool | None = None
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: list[str | CohereDocument] | None = None
    citation_options: CohereCitations | None = None  # only OFF and DISABLED: no citations are made
    safety_mode: Literal["CONTEXTUAL", "STRICT", "OFF"] | None = None  # for templates that know it
    thinking: CohereThinking | None = None
    chat_template_kwargs: Object | None = None  # not Cohere's
    logprobs: bool | None = None


class CohereInput(msgspec.Struct):
    content: list[CoherePart]


class CohereEmbedRequest(msgspec.Struct, kw_only=True):
    """POST /v2/embed, and /v1/embed."""

    model: str | None = None
    texts: list[str] | None = None
    inputs: list[CohereInput] | None = None
    images: list[str] | None = None  # known, and refused
    input_type: str | None = None
    embedding_types: list[EmbeddingType] | None = None  # float if left out
    output_dimension: int | None = None
    truncate: Literal["NONE", "START", "END"] | None = None  # END if left out
    max_tokens: int | None = None
    priority: int | None = None
