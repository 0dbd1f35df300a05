"""Fields that clients know from OpenAI, Anthropic, vLLM, SGLang and llama.cpp and that have no effect here: every
endpoint refuses them by name where they ask for something. If they were passed over, it would look as if they had been
heeded.

Not among them: labels and hints that change no answer (`user`, `prompt_cache_key`, `session_id`, `verbosity` …).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cache
from typing import Any, TypeVar

import msgspec

from ...anthropic import schemas as anthropic
from ...anthropic.schemas import CountRequest, MessagesRequest
from ...cohere.schemas import CohereChatRequest
from ...cohere.v1.schemas import CohereChatV1Request
from ...errors import bad_request
from ...llamacpp.schemas import HINTS, LlamaCompletionRequest, LlamaInfillRequest
from ...llamacpp.schemas import NOTHING as OF_LLAMACPP
from ...ollama.schemas import OllamaChatRequest, OllamaGenerateRequest
from ...openai.responses import schemas as responses
from ...openai.responses.schemas import ConversationRequest, ResponsesRequest
from ...openai.schemas import ChatRequest, CompletionRequest, GenerateParameters, GenerateRequest, TokensRequest
from ...sglang import schemas as sglang
from ...sglang.schemas import SglangGenerateRequest, SglangSampling
from ...tgi import schemas as tgi
from ...tgi.schemas import TgiParameters, TgiRequest
from .decoding import decode

T = TypeVar("T", bound=msgspec.Struct)
NOTHING: tuple[object, ...] = (None, False, 0, "", [], {})
YET = " by this server yet."
ELSEWHERE_MADE = {  # what does the same
    **dict.fromkeys(sglang.MEDIA, " here: /generate takes it, and chats have it among their messages."),
    "return_hidden_states": " here: chat, completions and /generate tell them, with --enable-return-hidden-states, and"
    " of a model that pools /pooling, with the task token_embed.",
    "inputs": ": these are OpenAI's conversations, which keep items; POST /v1/responses answers in one.",
}
INSIDE = "sampling_params"
OBJECTS: dict[type, tuple[str, type[msgspec.Struct]]] = {  # bodies that say in an object of theirs how to generate
    GenerateRequest: (INSIDE, GenerateParameters),
    SglangGenerateRequest: (sglang.INSIDE, SglangSampling),
    TgiRequest: (tgi.INSIDE, TgiParameters),
}
LABELS = frozenset({"request_id", "user", "metadata", "service_tier", "store", "stream_options"})

NOT_BUILT: dict[str, tuple[object, ...]] = {  # field: the values that change nothing
    # OpenAI's
    "audio": NOTHING,
    "conversation": NOTHING,
    "function_call": (None, "none", "auto"),
    "functions": NOTHING,
    "modalities": (None, [], ["text"]),
    "moderation": NOTHING,
    "web_search_options": (None,),
    # Mistral's
    "guardrails": NOTHING,
    "top_prompt_logprobs": NOTHING,
    # Anthropic's
    "compaction": NOTHING,
    "container": NOTHING,
    "context_management": NOTHING,
    "fallbacks": NOTHING,
    "inference_geo": NOTHING,
    "mcp_servers": NOTHING,
    "thread": NOTHING,
    # vLLM's
    "content_parts": NOTHING,
    "ec_transfer_params": NOTHING,
    "enable_response_messages": NOTHING,
    "extra_args": NOTHING,
    "features": NOTHING,
    "flat_logprobs": NOTHING,
    "kv_transfer_params": NOTHING,
    "logits_processors": NOTHING,
    "media_io_kwargs": NOTHING,
    "mm_processor_kwargs": NOTHING,
    "output_mode": (None, "tokens"),
    "packed_top_logprobs": NOTHING,
    "padding": (None, False, "do_not_pad"),
    "parse_context": NOTHING,
    "previous_input_messages": NOTHING,
    "previous_response": NOTHING,
    "prompt_embeds": NOTHING,
    "prompt_logprob_start": NOTHING,
    "prompt_logprob_token_ids": NOTHING,
    "return_mm_kwargs": NOTHING,
    "return_weight_versions": NOTHING,
    "routed_experts_prompt_start": NOTHING,
    "skip_reading_prefix_cache": NOTHING,
    "trace_decode_token_ids": NOTHING,
    "watermarking": NOTHING,
    # SGLang's
    "bootstrap_host": NOTHING,
    "bootstrap_port": NOTHING,
    "bootstrap_room": NOTHING,
    "custom_logit_processor": NOTHING,
    "custom_params": NOTHING,
    "data_parallel_rank": NOTHING,
    "disagg_prefill_dp_rank": NOTHING,
    "extra_key": NOTHING,
    "images_config": NOTHING,
    "lora_path": NOTHING,
    "max_dynamic_patch": NOTHING,
    "min_dynamic_patch": NOTHING,
    "ngram_corpus_id": NOTHING,
    "return_cached_tokens_details": NOTHING,
    "return_hidden_states": NOTHING,
    "return_routed_experts": NOTHING,
    "routed_dp_rank": NOTHING,
    "routed_experts_start_len": NOTHING,
    "separate_reasoning": (None, True),
    "session_params": NOTHING,
    "stop_regex": NOTHING,
    "stream_reasoning": (None, True),
    "use_audio_in_video": NOTHING,
    # llama.cpp's
    "n_cmpl": (None, 1),
    "n_probs": NOTHING,
    "post_sampling_probs": NOTHING,
    **{name: (None, *values) for name, values in (OF_LLAMACPP | HINTS).items()},
}
DEFAULTS: dict[str, tuple[object, ...]] = {  # of chat's fields: what changes nothing where they are not known
    "n": (*NOTHING, 1),
    "best_of": (*NOTHING, 1),
    "length_penalty": (*NOTHING, 1),
    "stream_interval": (*NOTHING, 1),
    "add_generation_prompt": (None, True),
    "enable_thinking": (None,),
    "include_reasoning": (None, True),
    "parallel_tool_calls": (None, True),
    "n_predict": (None, -1),
    "repeat_penalty": (None, 1),
    "spaces_between_special_tokens": (*NOTHING, True),
    "thinking": (None,),
    "thinking_token_budget": (None, -1),
    "typical_p": (None, 0, 1),
}
ELSEWHERE = frozenset(
    {"logits_processors", "prompt_embeds", "return_hidden_states"}
)  # looked at where the options are known
OF_COMPLETIONS = frozenset({"session_params"})
OF_TOKENS = frozenset({"post_sampling_probs"})
OF_MESSAGES = frozenset({"context_management"})
OF_RESPONSES = frozenset({"conversation"})
OF_OPENAI = frozenset({"lora_path"})
OF_CHATS = frozenset(
    {"mm_processor_kwargs", "media_io_kwargs", "functions", "function_call"}
)  # which are built for these alone
OF_SAMPLING = frozenset(
    {"xtc_probability", "dynatemp_range", "mirostat", "dry_multiplier", "typical_p"}
)  # which bodies without SamplingFields do not have
WITHOUT: tuple[type[msgspec.Struct], ...] = (
    *(CohereChatRequest, CohereChatV1Request, LlamaCompletionRequest, LlamaInfillRequest),
    *(OllamaChatRequest, OllamaGenerateRequest),
)
NO_PLACE = frozenset({"logprob_token_ids"})  # answers of these dialects have none for what it asks for
MISTRALS = frozenset({"inputs"})  # its POST /v1/conversations answers them
OF_PROMPTS = (CompletionRequest, GenerateParameters)
NOT_OF_PROMPTS = frozenset({"thinking_token_budget"})  # vLLM has it there, too: here thinking is a chat's
INSTEAD: dict[type, dict[str, str]] = {  # APIs that have another name for some of chat's fields, and not all of them
    ResponsesRequest: responses.NAMES,
    MessagesRequest: anthropic.NAMES,
}


def read(kind: type[T], body: bytes) -> T:
    """The struct of a request's body. A 400 names the field that cannot be, or that is known and not supported."""
    request = decode(kind, body)
    _check(kind, _passed_over(kind)(body), "")
    if kind in OBJECTS:
        place, inside = OBJECTS[kind]
        given = _decoder((place,))(body).get(place)
        for one in given if isinstance(given, list) else [given]:
            if isinstance(one, dict):
                _check(inside, {name: one[name] for name in _unheeded(inside) if name in one}, f"{place}.")
    return request


def check_built(request: msgspec.Struct, built: Container[str] = ()) -> None:
    """The same for fields that a struct has, so that their types are looked at, too. `built`: with these options they
    are there.
    """
    for field in request.__struct_fields__:
        if (
            field in NOT_BUILT
            and field not in built
            and field not in ELSEWHERE
            and not (field in OF_CHATS and isinstance(request, ChatRequest))
            and not (field in OF_COMPLETIONS and isinstance(request, CompletionRequest))
            and not (field in OF_TOKENS and isinstance(request, TokensRequest))
            and not (field in OF_MESSAGES and isinstance(request, CountRequest))
            and not (field in OF_RESPONSES and isinstance(request, ResponsesRequest))
            and not (field in OF_OPENAI and isinstance(request, ChatRequest | CompletionRequest))
            and _asks(getattr(request, field), NOT_BUILT[field])
        ):
            raise bad_request(f"{field} is not supported{ELSEWHERE_MADE.get(field, YET)}", field)


def _check(kind: type[msgspec.Struct], passed_over: dict[str, object], path: str) -> None:
    for name, value in passed_over.items():
        if _asks(value, NOT_BUILT.get(name) or DEFAULTS.get(name, NOTHING)):
            other = INSTEAD.get(kind, {}).get(name)
            hint = ELSEWHERE_MADE.get(name, YET if name in NOT_BUILT else " here.")
            if other:
                hint = f": here it is {other}."
            raise bad_request(f"{path}{name} is not supported{hint}", f"{path}{name}")


def _passed_over(kind: type[msgspec.Struct]) -> Callable[[bytes], dict[str, object]]:
    """Reads the known fields that this kind of body does not have."""
    return _decoder(_unheeded(kind))


@cache
def _unheeded(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Their names."""
    names = {*NOT_BUILT, *OF_SAMPLING, *sglang.MEDIA}
    if kind in INSTEAD:
        names |= {*ChatRequest.__struct_fields__} - LABELS
    if kind is ConversationRequest:
        names |= MISTRALS
    if kind in OF_PROMPTS:
        names |= NOT_OF_PROMPTS
    names -= {*kind.__struct_fields__}
    if kind in WITHOUT:
        names |= NO_PLACE  # also where it is among what sampling has everywhere
    return tuple(sorted(names))


@cache
def _decoder(names: tuple[str, ...]) -> Callable[[bytes], dict[str, object]]:
    """Reads these members of an object and passes over all others, of which there may be many."""
    fields = [(name, Any, msgspec.field(default=msgspec.UNSET)) for name in names]
    decode_members = msgspec.json.Decoder(msgspec.defstruct("Members", fields)).decode

    def members(body: bytes) -> dict[str, object]:
        try:
            found: dict[str, object] = msgspec.to_builtins(decode_members(body))
        except msgspec.DecodeError as error:  # in a value that was skipped, and not read, before
            raise bad_request(f"The body cannot be read: {error}") from None
        return found

    return members


def _asks(value: object, nothing: tuple[object, ...]) -> bool:
    """Does this value ask for something?"""
    return not any(value == other and (isinstance(value, bool) == isinstance(other, bool)) for other in nothing)
