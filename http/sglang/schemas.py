"""The bodies of SGLang's own API as msgspec structs. null means absent for every field.

A batch may give a list where one value is enough; here all of such a list have to be the same.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..openai.schemas import Object, Priority, SessionParams
from .names import AdapterName

MOST_NEW_TOKENS = 128  # where a request does not say
NOTHING: dict[str, tuple[object, ...]] = {  # of sampling parameters: refused unless they have one of these values
    "custom_params": ({},),
    "stop_regex": ("", []),
}
INSIDE = "sampling_params"


class SglangSampling(msgspec.Struct, kw_only=True):
    """How to generate."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    stream_interval: int | None = None
    json_schema: Object | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: Object | str | None = None

    custom_params: Any = None  # these are in NOTHING
    stop_regex: Any = None


class SglangGenerateRequest(msgspec.Struct, kw_only=True):
    """POST /generate."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SglangSampling | list[SglangSampling] | None = None
    rid: str | list[str] | None = None
    stream: bool | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None  # -1: logprobs of the answer alone
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int]] | None = None
    return_text_in_logprobs: bool | None = None
    return_hidden_states: bool | list[bool] | None = None
    lora_path: AdapterName = None
    model: str | None = None
    priority: Priority = None
    cache_salt: str | None = None
    extra_key: str | list[str] | None = None  # keeps prefixes apart, as a salt does

    session_params: SessionParams | None = None  # of a session, as completions have them

    image_data: Any = None  # an address, a file's name or base64, or lists of such (media.py); so are the next two
    video_data: Any = None
    audio_data: Any = None
    modalities: list[str] | None = None  # which of them there are: what is given says so

    input_embeds: Any = None  # known, and refused
    max_thinking_tokens: Any = None
    return_entropy: Any = None
    return_flat_raw_top_logprobs: Any = None
    return_prompt_token_ids: Any = None
    return_sampling_mask: Any = None


class SglangEncodeRequest(msgspec.Struct, kw_only=True):
    """POST /encode: vectors, scores or labels, as the model makes them."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    rid: str | list[str] | None = None
    dimensions: int | None = None
    model: str | None = None
    priority: Priority = None

    image_data: Any = None  # known, and refused, as are the next two
    video_data: Any = None
    audio_data: Any = None


class SglangScoringRequest(msgspec.Struct, kw_only=True):
    """POST /v1/score: how likely each label follows a query with each item."""

    query: str | list[int]
    items: str | list[str | list[int]]
    label_token_ids: list[int]
    apply_softmax: bool | None = None  # among the labels; else among all tokens
    item_first: bool | None = None
    model: str | None = None


class PauseRequest(msgspec.Struct):
    """POST /pause_generation. What runs is ended, computed anew later, or goes on from where it is."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class MemoryRequest(msgspec.Struct):
    """POST /release_memory_occupation, which takes both or none, and /resume_memory_occupation."""

    tags: list[str] | None = None  # weights, kv_cache and cuda_graph


class ParseCallsRequest(msgspec.Struct):
    """POST /parse_function_call."""

    text: str
    tools: list[msgspec.Raw] | None = None
    tool_call_parser: str | None = None  # that of the server, if left out


class SeparateReasoningRequest(msgspec.Struct):
    """POST /separate_reasoning."""

    text: str
    reasoning_parser: str | None = None  # that of the server, if left out


MEDIA = frozenset({"image_data", "video_data", "audio_data"})  # refused by /encode
REFUSED = frozenset(
    {
        *("input_embeds", "max_thinking_tokens", "return_entropy"),
        *("return_flat_raw_top_logprobs", "return_prompt_token_ids", "return_sampling_mask"),
    }
)
