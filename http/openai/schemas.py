"""Request bodies of the generating endpoints, as msgspec structs: names and types. Ranges are in generation/ranges.py.

null means absent for every field. What clients know and this server cannot do is in generation/unsupported.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Object = dict[str, Any]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # known, and refused


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(msgspec.Struct):
    """One turn. Everything else in it is passed on to the chat template."""

    role: Annotated[
        str, Meta(min_length=1, max_length=64)
    ]  # those that are not OpenAI's are the chat template's matter
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
    truncation_side: Literal["left", "right"] | None = None  # what is cut off
    add_special_tokens: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    user: str | None = None
    metadata: Any = None  # labels for who keeps answers; nobody does here

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    prompt_logprobs: int | None = None
    best_of: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    spaces_between_special_tokens: bool | None = None  # tokens' texts are joined as the tokenizer's decoder does it
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None  # of beam search
    stream_interval: int | None = None
    response_format: Object | None = None
    structured_outputs: Object | None = None
    guided_json: Object | str | None = None  # these ask for the same by other names: wishes.OTHER_NAMES
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: Object | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    service_tier: str | None = None  # there is one
    store: bool | None = None  # answers of /v1/responses are kept, and no others

    # known, and refused where they ask for something (generation/unsupported.py)
    kv_transfer_params: Any = None
    repetition_detection: Any = None


class ToolFunction(msgspec.Struct):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: Object | bool | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    function: ToolFunction
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct):
    name: str


class NamedTool(msgspec.Struct):
    """tool_choice: this one is to be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


class ChatRequest(GenerationFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: msgspec.Raw
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    documents: list[Object] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[msgspec.Raw] | None = None  # Tool; kept as they came, for the chat template
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    echo: bool | None = None

    functions: list[Object] | None = None
    function_call: Any = None


class CompletionRequest(GenerationFields, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]] | None = None
    logprobs: int | bool | None = None
    echo: bool | None = None

    suffix: str | None = None
    prompt_embeds: Any = None


class TokensRequest(CompletionRequest, kw_only=True):
    """What a GenerateRequest asks for: a completion, but up to the model's length unless it is told."""


class GenerateParameters(GenerationFields, kw_only=True):
    """How to generate, by the names of the sampling fields."""

    logprobs: int | None = None
    detokenize: bool | None = None  # there is no text either way, but without it no stop strings


class GenerateRequest(msgspec.Struct, kw_only=True):
    """POST /inference/v1/generate: token ids in, token ids out."""

    token_ids: list[int]
    sampling_params: GenerateParameters = msgspec.field(default_factory=GenerateParameters)
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    priority: int | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize."""

    model: str | None = None
    prompt: str | None = None
    messages: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    return_token_strs: bool | None = None

    tools: list[msgspec.Raw] | None = None
    chat_template: str | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None
