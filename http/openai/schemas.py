"""Request bodies of the generating endpoints, as msgspec structs: names, types and ranges.

What steers sampling is in protocol/sampling/fields.py: SamplingFields, and is the same in all APIs. null means absent
for every field. What clients know and this server cannot do is in generation/fields/unsupported.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from actorserve.actors.protocol.request import MOST_LOGPROBS, NamedProcessor
from actorserve.actors.protocol.sampling.ranges import INT32, INT64, Range

from ..media.schemas import MediaFields
from ..sglang.names import AdapterName, SglangFields, one_of
from .thinking import ReasoningOptions, ThinkingBudget, ThinkingOptions, rename_thinking

Object = dict[str, Any]
MAX_CHOICES = 128
NO_LIMIT = -1  # of tokens but the model's own, as llama.cpp's and LM Studio's clients say it
Priority = Annotated[int | None, INT32]
Logprobs = Range(-1, MOST_LOGPROBS)  # -1: of the whole vocabulary; --max-logprobs says how many there may be


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # events are filled up to a multiple of some bytes


class ContentPart(MediaFields):
    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: str | list[Object] | None = None  # of an assistant


class ChatMessage(msgspec.Struct):
    """One turn. Everything else in it is passed on to the chat template."""

    role: Annotated[
        str, Meta(min_length=1, max_length=64)
    ]  # those that are not OpenAI's are the chat template's matter
    content: str | list[ContentPart | str] | None = None
    tool_calls: list[Object] | None = None


class RepetitionDetection(msgspec.Struct):
    """The answer ends where a pattern of so many tokens has come `min_count` times in a row."""

    max_pattern_size: Annotated[int, Meta(ge=0, le=256)] = 0  # 0: nothing is looked for
    min_pattern_size: Annotated[int, Meta(ge=0, le=256)] = 0  # 0: 1
    min_count: Annotated[int, Meta(ge=0, le=4096)] = 0


class GenerationFields(SglangFields, kw_only=True):
    """What chat and completions have in common."""

    model: str | None = None
    max_tokens: Annotated[int | None, Range(1)] = None
    n: Annotated[int | None, Range(1, MAX_CHOICES)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    no_stop_trim: bool | None = None  # SGLang's name of include_stop_str_in_output
    truncate_prompt_tokens: Annotated[int | None, Range(-1)] = None
    truncation_side: Literal["left", "right"] | None = None  # what is cut off
    add_special_tokens: bool | None = None
    priority: Priority = None
    user: str | None = None
    metadata: Any = None  # labels for who keeps answers; nobody does here

    prompt_logprobs: Annotated[int | None, Logprobs] = None
    best_of: Annotated[int | None, Range(1, MAX_CHOICES)] = None
    spaces_between_special_tokens: bool | None = None  # tokens' texts are joined as the tokenizer's decoder does it
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_offsets: bool | None = None  # of /render; as vLLM has it, nothing of others
    return_prompt_text: bool | None = None  # as its tokens say it, special ones among them
    vllm_xargs: Object | None = None  # for --logits-processors; passed over where there are none
    logits_processors: list[str | NamedProcessor] | None = None  # with --logits-processor-pattern
    return_metrics: bool | None = None  # when what happened to it, beside the usage
    repetition_detection: RepetitionDetection | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None  # of beam search
    stream_interval: Annotated[int | None, Range(1, 1 << 16)] = None
    response_format: Object | None = None
    structured_outputs: Object | None = None
    guided_json: Object | str | None = None  # these ask for the same by other names: structured_output.OTHER_NAMES
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

    # known, and refused where they ask for something (generation/fields/unsupported.py)
    kv_transfer_params: dict[str, Any] | None = None


class ToolFunction(msgspec.Struct):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: Object | bool | None = None
    strict: bool | None = None


class ChatTool(msgspec.Struct):
    function: ToolFunction
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct):
    name: str


class NamedTool(msgspec.Struct, tag_field="type", tag="function"):
    """tool_choice: this one is to be called."""

    function: NamedFunction


class AllowedNames(msgspec.Struct):
    """Functions by their names."""

    tools: Annotated[list[NamedTool], Meta(min_length=1)]
    mode: Literal["auto", "required"] = "auto"


class AllowedTools(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """tool_choice: these of the tools, and no others."""

    allowed_tools: AllowedNames


class ChatRequest(GenerationFields, kw_only=True):
    """POST /v1/chat/completions."""

    return_hidden_states: bool | None = None  # SGLang's: of the last token that was computed
    return_prompt_token_ids: bool | None = None  # SGLang's: in each choice, and not streamed
    messages: msgspec.Raw
    max_tokens: Annotated[int | None, Range(NO_LIMIT)] = None
    max_completion_tokens: Annotated[int | None, Range(NO_LIMIT)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    documents: list[Object] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int | None, Range(-1)] = None
    reasoning: ReasoningOptions | None = None  # these six say it by other names (thinking.py)
    thinking: ThinkingOptions | bool | None = None
    enable_thinking: bool | None = None
    thinking_budget: ThinkingBudget | None = None
    thinking_budget_tokens: ThinkingBudget | None = None  # llama-server's, as is the next
    reasoning_budget_tokens: ThinkingBudget | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Logprobs] = None
    tools: list[msgspec.Raw] | None = None  # ChatTool; kept as they came, for the chat template
    tool_choice: Literal["none", "auto", "required", "any"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    echo: bool | None = None
    mm_processor_kwargs: Object | None = None  # ProcessorChanges
    media_io_kwargs: Object | None = None  # ReadingChanges

    random_seed: Annotated[int | None, INT64] = None  # Mistral's, and what follows (mistral.py)
    safe_prompt: bool | None = None
    prompt_mode: Literal["reasoning"] | None = None

    lora_path: AdapterName = None  # SGLang's: the adapter; of several models `model` says which is asked

    functions: list[msgspec.Raw] | None = None  # ToolFunction; what tools were before (functions.py)
    function_call: Literal["none", "auto"] | NamedFunction | None = None

    def __post_init__(self) -> None:
        """Names of Mistral and others for what is called otherwise here."""
        super().__post_init__()
        self.model = one_of(self.lora_path, "lora_path") or self.model
        if self.tool_choice == "any":
            self.tool_choice = "required"
        if self.seed is None:
            self.seed = self.random_seed
        rename_thinking(self)


class ChatBatchRequest(ChatRequest, kw_only=True):
    """POST /v1/chat/completions/batch: `messages` are several conversations."""


class SessionParams(msgspec.Struct, forbid_unknown_fields=True):
    """Which turn of a session a completion goes on from, as SGLang has it; with nothing in it, from none."""

    id: Annotated[str, Meta(max_length=128)] | None = None
    rid: Annotated[str, Meta(max_length=256)] | None = None  # the id of that turn's answer; none: it begins anew
    offset: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None  # tokens that are kept of it; 0: all;
    # below 0: all but so many at its end
    replace: bool | None = None  # what came behind that turn is forgotten; without rid all turns are
    drop_previous_output: bool | None = None  # its answer is left out


class CompletionRequest(GenerationFields, kw_only=True):
    """POST /v1/completions."""

    return_hidden_states: bool | None = None  # SGLang's: of the last token that was computed
    lora_path: AdapterName = None  # SGLang's: the adapter; of several models `model` says which is asked
    prompt: str | list[str | int | list[int]] | None = None
    max_tokens: Annotated[int | None, Range(NO_LIMIT)] = None  # 0, with echo, for those who want its logprobs only
    logprobs: Annotated[int | bool | None, Logprobs] = None
    echo: bool | None = None

    suffix: str | None = None
    prompt_embeds: str | list[str] | None = None  # tensors as torch.save writes them, in base64
    session_params: SessionParams | None = None

    def __post_init__(self) -> None:
        """The name that SGLang's clients have for an adapter."""
        super().__post_init__()
        self.model = one_of(self.lora_path, "lora_path") or self.model


class TokensRequest(CompletionRequest, kw_only=True):
    """What a GenerateRequest asks for: a completion, but up to the model's length unless it is told."""

    max_tokens: Annotated[int | None, Range(0)] = None
    post_sampling_probs: bool | None = None  # logprobs are those of what is drawn from, behind all samplers


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
    priority: Priority = None


class ModelQuery(msgspec.Struct):
    """The query of what tells of a model: of which one, if not the first."""

    model: str | None = None


class InvocationRequest(msgspec.Struct, kw_only=True):
    """POST /invocations: the body of another path, which one of these fields tells, or a session to open or close."""

    request_type: Literal["NEW_SESSION", "CLOSE"] | None = msgspec.field(default=None, name="requestType")
    messages: Any = None
    prompt: Any = None
    token_ids: Any = None
    input: Any = None
    task: Any = None
    documents: Any = None
    text_1: Any = None
    queries: Any = None


class GenerativeScoringRequest(msgspec.Struct, kw_only=True):
    """POST /generative_scoring."""

    query: str | list[int]
    items: list[str | list[int]]
    label_token_ids: Annotated[list[int], Meta(min_length=1)]  # the score is that of the first
    model: str | None = None
    apply_softmax: bool | None = None  # false: among all tokens, and not among these alone
    item_first: bool | None = None  # items stand before the query
    add_special_tokens: bool | None = None  # to the query
    cache_salt: str | None = None
    priority: Priority = None
    request_id: str | None = None
