"""The answers as msgspec structs, for /openapi.json: nothing else may be in them. Writers make them of plain dicts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

Finish = Literal["stop", "length", "tool_calls", "function_call", "abort", "repetition"] | None
Ids = list[int] | None
Timings = dict[str, float]  # by llama.cpp's names
Progress = dict[str, int]  # likewise: how far a prompt has come


class Said(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class ErrorDetail(Said):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Said):
    """What is wrong; `param` names the request's field."""

    error: ErrorDetail


class CachedTokens(Said):
    cached_tokens: int


class ReasoningTokens(Said):
    reasoning_tokens: int


class Usage(Said):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class Metrics(Said):
    """Seconds, what the request has survived, and times by vLLM's names, in ms."""

    queue_time: float
    time_to_first_token: float
    prefill_time: float
    decode_time: float
    total_time: float
    preemptions: int
    deaths_survived: int
    queue_time_ms: float
    time_to_first_token_ms: float
    generation_time_ms: float
    mean_itl_ms: float | UnsetType = UNSET
    tokens_per_second: float | UnsetType = UNSET


class LikelyToken(Said):
    token: str
    logprob: float
    bytes: list[int]
    token_id: int | UnsetType = UNSET  # where tokens go in and out, as is the rank


class TokenLogprob(Said):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[LikelyToken]
    token_id: int | UnsetType = UNSET
    rank: int | UnsetType = UNSET


class ChatLogprobs(Said):
    content: list[TokenLogprob]
    refusal: None


class PromptLogprob(Said):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class FunctionCall(Said):
    name: str
    arguments: str


class ToolCall(Said):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(Said):
    role: str
    content: str | list[dict[str, Any]] | None  # parts with thinking are for Mistral's clients alone
    refusal: None
    reasoning: str | None
    reasoning_content: str | None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class ChatChoice(Said):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: int | str | None
    token_ids: Ids | None
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET  # here where there are several conversations
    prompt_token_ids: Ids | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


class ChatCompletion(Said):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: Ids | None
    system_fingerprint: str | UnsetType = UNSET
    service_tier: Literal["default"] | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


class FunctionDelta(Said):
    arguments: str
    name: str | UnsetType = UNSET


class CallDelta(Said):
    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Said):
    role: str | UnsetType = UNSET
    content: str | list[dict[str, Any]] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChunkChoice(Said):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: Ids | UnsetType = UNSET


class ChatCompletionChunk(Said):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: Ids | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    service_tier: Literal["default"] | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: Progress | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class CompletionLogprobs(Said):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionPart(Said):
    """A choice of one event of a streamed completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: Ids | UnsetType | None = UNSET
    prompt_token_ids: Ids | UnsetType | None = UNSET
    prompt_text: str | UnsetType = UNSET


class CompletionChoice(CompletionPart, kw_only=True):
    """A choice of a completion."""

    stop_reason: int | str | None
    prompt_logprobs: PromptLogprobs | None


class Completion(Said):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class CompletionChunk(Said):
    """One event of a streamed completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionPart]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: Progress | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class ModelCard(Said):
    """Of one that cannot be served it is known that it is there, and why."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    status: dict[str, str | int]
    root: str | UnsetType = UNSET
    parent: str | UnsetType | None = UNSET
    max_model_len: int | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    max_input_tokens: int | UnsetType = UNSET
    max_tokens: int | UnsetType = UNSET
    lifecycle: Literal["active"] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    endpoints: list[str] | UnsetType = UNSET
    finetuned: bool | UnsetType = UNSET
    context_length: int | UnsetType = UNSET
    is_deprecated: bool | UnsetType = UNSET
    meta: dict[str, int] | UnsetType = UNSET
    capabilities: UnsetType | None = UNSET
    deprecated_at: UnsetType | None = UNSET
    line: UnsetType | None = UNSET
    retires_at: UnsetType | None = UNSET


class ListedModel(Said):
    """As llama.cpp's and Cohere's clients read it."""

    name: str
    model: str
    size: int
    digest: str
    details: dict[str, Any]
    type: Literal["model"]
    description: str
    tags: list[str]
    capabilities: list[str]
    endpoints: list[str]
    finetuned: bool
    context_length: int
    is_deprecated: bool


class ModelList(Said):
    object: Literal["list"]
    data: list[ModelCard]
    models: list[ListedModel]
    first_id: str | None
    last_id: str | None
    has_more: bool


class TokenPiece(Said):
    """As llama.cpp's clients read it: bytes where they are no text by themselves."""

    id: int
    piece: str | list[int]


class TokenizeAnswer(msgspec.Struct):
    """Of several texts, lists of each. `token_strings` is Cohere's name of `token_strs`."""

    count: int | list[int]
    max_model_len: int
    tokens: list[int | TokenPiece | list[int | TokenPiece]]
    token_strs: list[str | list[str] | None] | None
    token_strings: list[str] | msgspec.UnsetType = msgspec.UNSET


class DetokenizeAnswer(Said):
    """The text, or texts of several lists, by the names that vLLM, llama.cpp and SGLang have for it."""

    prompt: str | list[str]
    content: str | list[str]
    text: str | list[str]


class Rendered(Said):
    request_id: str
    token_ids: list[int]
    token_offsets: list[Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)]] | None
    sampling_params: dict[str, Any]
    model: str
    stream: bool
    stream_options: dict[str, bool | None] | None
    cache_salt: str | None
    priority: int
