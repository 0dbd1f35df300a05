"""From a checked body to what the engine is asked: prompts, parameters, and how they are rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.protocol.request import (
    BY_TOKEN,
    CLASSIFY,
    EMBED,
    NORMALIZE,
    TOKEN_EMBED,
    Generation,
    Pooling,
    Sampling,
)
from actorserve.actors.protocol.topics.prompts import Prompt, TextPrompt, TokenPrompt

from ..errors import ApiError, bad_request
from ..generation.fields.ranges import check_cut, check_ranges, check_salt
from ..generation.prompts import chat_prompt, check_template, check_tokens
from ..openai.schemas import ChatRequest
from ..settings import Settings
from .packed import BYTES
from .schemas import MAX_INPUTS, UNMADE, EmbeddingRequest, InputFields, PoolingFields, PoolingRequest

SAME = {  # names of clients for kinds of inputs, by those that sentence-transformers' prompts have
    "query": ("query", "search_query", "retrieval.query", "s2p_query"),
    "document": ("document", "passage", "search_document", "retrieval.passage", "corpus"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}
SWITCHES = ("use_activation", "activation", "softmax", "normalize")


@dataclass(frozen=True)
class PoolingWork:
    """As the engine takes it."""

    prompts: list[Prompt]
    params: bytes
    rendering: dict[str, Any]


def pooling_of(settings: Settings) -> PoolingSpec:
    """How the model pools; a 400 if it generates."""
    if settings.pooling is None:
        if names := settings.instead(lambda one: one.pooling is not None):
            text = f"model: {settings.served[0]} makes no embeddings, scores or labels; {names} does."
            raise ApiError(400, text, "model", "model_not_supported")
        text = (
            "model: this server generates text. Embeddings, scores and labels are served by one that was started with "
            "a model for that, or with --runner pooling."
        )
        raise ApiError(400, text, "model", "model_not_supported")
    return settings.pooling


def check_generates(settings: Settings) -> None:
    """400 where the model makes no texts."""
    if not settings.generates and (names := settings.instead(lambda one: one.generates)):
        text = f"model: {settings.served[0]} {_does(settings)}, and generates no text; {names} does."
        raise ApiError(400, text, "model", "model_not_supported")
    if settings.pooling is not None:
        tasks = ", ".join(settings.pooling.tasks)
        text = f"model: this model pools ({tasks}) and generates no text; --runner generate serves one that does."
        raise ApiError(400, text, "model", "model_not_supported")
    if settings.encoder is not None and settings.encoder.speech is not None:
        text = (
            "model: this model writes down what it hears: send a sound to /v1/audio/transcriptions or "
            "/v1/audio/translations."
        )
        raise ApiError(400, text, "model", "model_not_supported")


def _does(settings: Settings) -> str:
    """What the model is for, which is not to write."""
    return "writes down what it hears" if settings.pooling is None else f"pools ({', '.join(settings.pooling.tasks)})"


def check_task(spec: PoolingSpec, task: str, field: str = "model") -> None:
    """400 if the model has no such task."""
    if task not in spec.tasks:
        headed = task in (EMBED, TOKEN_EMBED) and EMBED not in spec.tasks
        hint = " --convert embed makes vectors of a model with a head." if headed else ""
        raise bad_request(f"{field}: {task} cannot be had of this model; it has {', '.join(spec.tasks)}.{hint}", field)


def work(
    body: PoolingFields,
    settings: Settings,
    prompts: list[Prompt],
    pooling: Pooling,
    about: tuple[str, str, str],
) -> PoolingWork:
    """`about`: (the request's id, its client, the field of its prompts)."""
    request_id, client, field = about
    check_ranges(body)
    if body.mm_processor_kwargs and settings.media is None:
        raise bad_request("mm_processor_kwargs: this model takes texts alone.", "mm_processor_kwargs")
    check_cut(body.truncate_prompt_tokens, settings.max_model_len)
    check_salt(body.cache_salt)
    if len(prompts) > MAX_INPUTS:
        raise bad_request(f"{field}: at most {MAX_INPUTS} are taken in one request, not {len(prompts)}.", field)
    if not settings.has_tokenizer and not all(isinstance(prompt, TokenPrompt) for prompt in prompts):
        text = f"{field}: the server has no tokenizer (--skip-tokenizer-init): it takes token ids alone."
        raise bad_request(text, field)
    salt = body.cache_salt or ""
    if settings.prefix_cache_per_client:
        salt = f"{client} {salt}"
    generation = Generation(
        Sampling(seed=0, temperature=0.0, pooling=pooling),
        priority=body.priority or 0,
        stream=False,
        request_id=request_id,
        cache_salt=salt,
    )
    rendering = {
        "max_tokens": 1,
        "truncate_prompt_tokens": body.truncate_prompt_tokens,
        "keep_first": body.truncation_side != "left",
        "cache_salt": salt,
        "pools": True,
        "field": field,
    }
    return PoolingWork(prompts, msgspec.msgpack.encode(generation), rendering)


def embedding(body: EmbeddingRequest, spec: PoolingSpec, task: str = EMBED) -> Pooling:
    """What is asked of each text: a vector, or one for each token."""
    width = spec.width if task == EMBED else spec.dense[-1].outputs if spec.dense else spec.hidden
    field = "dimensions" if body.output_dimension is None else "output_dimension"
    asked = body.dimensions if body.output_dimension is None else body.output_dimension
    if body.dimensions not in (None, asked):
        raise bad_request("output_dimension: dimensions asks for another number; give either.", field)
    wanted = asked or spec.dimensions
    if asked is not None and not spec.may_cut:
        raise bad_request(f"{field}: this model's vectors cannot be cut (is_matryoshka is false).", field)
    if asked is not None and spec.cuts and asked not in (*spec.cuts, width):
        known = ", ".join(map(str, spec.cuts))
        raise bad_request(f"{field}: this model's vectors are cut to {known}, not to {asked}.", field)
    if wanted > width:
        raise bad_request(f"{field}: {wanted} is more than the {width} numbers of this model's vectors.", field)
    _check_dtype(body)
    given = _switch(body)
    normal = spec.normalize if given is None else given
    return Pooling(task, 0 if wanted == width else wanted, NORMALIZE if normal else "", _is_whole(spec, task))


def _check_dtype(body: EmbeddingRequest) -> None:
    if body.output_dtype in UNMADE:
        text = f"output_dtype: {body.output_dtype} is not supported: take float, binary or ubinary."
        raise bad_request(text, "output_dtype")
    if body.encoding_format in BYTES and body.output_dtype not in (None, "float"):
        raise bad_request("output_dtype: numbers are floats in bytes; float and base64 have bits.", "output_dtype")
    if isinstance(body, PoolingRequest) and body.output_dtype not in (None, "float"):
        raise bad_request("output_dtype: numbers are floats here; /v1/embeddings has bits.", "output_dtype")


def classification(body: PoolingFields, spec: PoolingSpec, task: str = CLASSIFY, score: bool = False) -> Pooling:
    """Scores of labels; `score`: of two texts."""
    own = spec.score_activation if score else spec.activation
    return Pooling(task, 0, "" if _switch(body) is False else own, _is_whole(spec, task))


def score_of(body: PoolingFields, spec: PoolingSpec) -> Pooling:
    """The score of two texts: a head's of both together, or a vector of each, or of each of their tokens."""
    if not spec.head:
        task = EMBED if EMBED in spec.tasks else TOKEN_EMBED
        return Pooling(task, 0, NORMALIZE, _is_whole(spec, task))
    check_task(spec, CLASSIFY)
    if len(spec.labels) != 1:
        text = f"model: scores are of models with one label, and this one has {len(spec.labels)}: see classify."
        raise bad_request(text, "model")
    return classification(body, spec, score=True)


def of_task(body: PoolingRequest, spec: PoolingSpec) -> Pooling:
    """POST /pooling: without a task what the model is for."""
    task: str = body.task or spec.tasks[0]
    check_task(spec, task, "task")
    if task in (EMBED, TOKEN_EMBED):
        return embedding(body, spec, task)
    for field in ("dimensions", "output_dimension"):
        if getattr(body, field) is not None:
            raise bad_request(f"{field}: {task} has a number for each label.", field)
    _check_dtype(body)
    return classification(body, spec, task)


def _is_whole(spec: PoolingSpec, task: str) -> bool:
    return task in BY_TOKEN or not spec.chunked


def _switch(body: PoolingFields) -> bool | None:
    """Is there an activation behind it? None: as the model has it."""
    given = {name: value for name in SWITCHES if (value := getattr(body, name, None)) is not None}
    if len(set(given.values())) > 1:
        raise bad_request(f"{' and '.join(given)} contradict each other.", next(iter(given)))
    return next(iter(given.values()), None)


# --- prompts ---------------------------------------------------------------------------------------------------------


def inputs(body: InputFields, settings: Settings, spec: PoolingSpec) -> tuple[list[Prompt], str]:
    """One text, several texts, one list of ids, or several; or a conversation. And the field that they stand in."""
    raw = bytes(body.messages)
    if (raw not in (b"", b"null")) == (body.input is not None):
        raise bad_request("Either input or messages must be given.", "input")
    text_before = prompt_named(body, spec)
    if body.input is None:
        chat = ChatRequest(
            messages=body.messages,
            add_special_tokens=body.add_special_tokens if spec.dual is None else body.add_special_tokens is not False,
            add_generation_prompt=bool(body.add_generation_prompt),
            continue_final_message=body.continue_final_message,
            chat_template=body.chat_template,
            chat_template_kwargs=body.chat_template_kwargs,
            mm_processor_kwargs=body.mm_processor_kwargs,
        )
        check_template(chat, settings.trust_request_chat_template)
        prompt = chat_prompt(chat, settings if settings.media is not None else None)
        if prompt.media and body.truncate_prompt_tokens is not None:
            text = "truncate_prompt_tokens is not supported with pictures, which cannot be cut."
            raise bad_request(text, "truncate_prompt_tokens")
        return [prompt], "messages"
    special = body.add_special_tokens is not False
    given: Any = [body.input] if isinstance(body.input, str) else body.input
    if not given:
        raise bad_request("input must not be an empty list.", "input")
    kinds = {type(part) for part in given}
    if kinds == {str}:
        return [TextPrompt(text_before + part, special) for part in given], "input"
    if text_before and (body.prompt_name or body.input_type):
        raise bad_request("prompt_name stands before texts, and input has token ids.", "prompt_name")
    if kinds == {int}:
        return [TokenPrompt(check_tokens(given, "input"))], "input"
    if kinds == {list}:
        return [TokenPrompt(check_tokens(part, "input")) for part in given], "input"
    raise bad_request("input must be a string, a list of strings, token ids, or a list of lists of them.", "input")


def prompt_named(body: InputFields, spec: PoolingSpec) -> str:
    """The prompt that stands before each text."""
    if body.prompt_name is not None:
        if body.prompt_name not in spec.prompts:
            known = ", ".join(spec.prompts) or "there are none"
            raise bad_request(f"prompt_name: {body.prompt_name!r} is no prompt of this model ({known}).", "prompt_name")
        return spec.prompts[body.prompt_name]
    if body.input_type is not None:
        kind = next((kind for kind, names in SAME.items() if body.input_type in names), None)
        names = (body.input_type, *(SAME[kind] if kind else ()))
        found = next((spec.prompts[name] for name in names if name in spec.prompts), None)
        if found is None and kind is None:
            known = ", ".join(spec.prompts) or f"it has none, and takes {', '.join(SAME)}"
            raise bad_request(f"input_type: {body.input_type!r} is no prompt of this model ({known}).", "input_type")
        return found or ""
    return spec.prompts.get(spec.default_prompt, "")
