"""The bodies of llama.cpp's server as msgspec structs. null means absent for every field."""

from __future__ import annotations

from typing import Any

import msgspec

from ..openai.schemas import Object

Biases = list[tuple[int | str, float | bool]] | dict[str, float | bool]  # by ids, or by texts: of all their tokens
MOST_TEXTS = 64  # of a prompt of texts and ids
HINTS: dict[str, tuple[object, ...]] = {  # likewise, but where a text is filled in: editors send them with each request
    "n_indent": (0,),
    "t_max_predict_ms": (0, -1),
}
NOTHING: dict[str, tuple[object, ...]] = {  # known, and refused unless they have one of these values
    "adaptive_target": (-1, -0.01),  # the second is SillyTavern's
    "lora": ([],),
    "min_keep": (0, 1),
}


class PromptObject(msgspec.Struct):
    """A text, and perhaps pictures and sounds that go where it has a mark (media.py)."""

    prompt_string: str
    multimodal_data: list[str] | str | None = None  # base64, or data: addresses


Prompt = str | PromptObject | list[int | str | PromptObject | list[int | str]]


class LlamaCompletionRequest(msgspec.Struct, kw_only=True):
    """POST /completion. `id_slot`, `cache_prompt` and `n_keep` are passed over: all slots share what they have."""

    prompt: Prompt  # ids, with texts between them or not, are one prompt; texts, lists and objects are several
    stream: bool | None = None
    n_cmpl: int | None = None  # answers to each prompt
    n_predict: int | None = None  # below 0: up to the model's length; 0: the prompt is read, and nothing said
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_n_sigma: float | None = None
    typical_p: float | None = None  # 0: as 1
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None  # tokens that penalties look back on; -1: all, 0: no penalties
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    ignore_eos: bool | None = None
    logit_bias: Biases | None = None  # false: never
    n_probs: int | None = None
    post_sampling_probs: bool | None = None  # these are of what is drawn from, behind all samplers
    grammar: str | None = None
    json_schema: Object | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None  # how far the prompt has come, in events of a stream before its text
    response_fields: list[str] | None = None  # of the whole answer, or the last event: these alone, as a/b if inside
    id_slot: int | None = None
    cache_prompt: bool | None = None
    n_keep: int | None = None
    samplers: list[str] | str | None = None  # those that are used, in our order; an empty list: as if left out
    model: str | None = None

    adaptive_target: Any = None  # these are in NOTHING
    lora: Any = None
    min_keep: Any = None
    n_indent: Any = None
    t_max_predict_ms: Any = None


class LlamaEmbeddingRequest(msgspec.Struct, kw_only=True):
    """POST /embedding, the older one."""

    content: str | list[str | int | list[int]] | None = None
    input: str | list[str | int | list[int]] | None = None  # the same
    embd_normalize: int | None = None  # 2, or left out: vectors have the length 1; -1: as the model makes them
    model: str | None = None


class AutoloadQuery(msgspec.Struct):
    """Of whatever asks a model for something."""

    autoload: bool | None = None  # is one loaded that is not? None: as --models-autoload says


class ModelsQuery(msgspec.Struct):
    """Of /v1/models."""

    endpoint: str | None = None  # Cohere's: only those that do this
    reload: str = ""  # any text: also those that have come to where models are looked for since the start


class LlamaModelQuery(msgspec.Struct):
    """DELETE /models."""

    model: str = ""


class LlamaModel(msgspec.Struct):
    """POST /models, /models/load and /models/unload."""

    model: str


class LlamaScale(msgspec.Struct):
    """Of an adapter, in POST /lora-adapters."""

    id: int
    scale: float


class ExtraFile(msgspec.Struct):
    text: str
    filename: str = ""


class LlamaInfillRequest(LlamaCompletionRequest, kw_only=True):
    """POST /infill: what stands between two texts."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] | None = None  # of the same repository
    prompt: str | None = None  # type: ignore[assignment]  # the beginning of what is filled in


class LlamaSlotsQuery(msgspec.Struct):
    """The query of /slots."""

    model: str | None = None
    fail_on_no_slot: bool = False
