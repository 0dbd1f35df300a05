"""Requests of llama.cpp's server to the completion that asks for the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import msgspec

from ..errors import ApiError, bad_request
from ..generation.adapter import encoded, with_names
from ..generation.fields.decoding import decode
from ..generation.infill import files_of, infill_ends, infill_tokens
from ..openai.schemas import Object, TokensRequest
from ..pooling.schemas import EmbeddingRequest
from .names import unused
from .schemas import (
    HINTS,
    MOST_TEXTS,
    NOTHING,
    Biases,
    LlamaCompletionRequest,
    LlamaEmbeddingRequest,
    LlamaInfillRequest,
    LlamaScale,
    Prompt,
    PromptObject,
)

SAME = (
    *("model", "stream", "temperature", "top_k", "top_p", "min_p", "top_n_sigma", "typical_p", "stop"),
    *("presence_penalty", "frequency_penalty", "repeat_last_n", "ignore_eos", "grammar", "json_schema"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "return_progress"),
    *("mirostat", "mirostat_tau", "mirostat_eta"),
    "post_sampling_probs",
)
NAMES = {"max_tokens": "n_predict", "n": "n_cmpl", "repetition_penalty": "repeat_penalty", "logprobs": "n_probs"}
NEVER = -100  # a bias; what it is added to is far from it


def renamed(error: ApiError) -> ApiError:
    """An error of the completion that names the field as this API does."""
    return with_names(error, NAMES)


Tokenize = Callable[[str, bool], Awaitable[list[int]]]  # of a text: is it at a prompt's beginning?


async def plain_prompt(prompt: Prompt, tokenize: Tokenize) -> str | list[Any]:
    """What a completion takes: a text, texts, ids, or lists of ids. Of texts beside ids the tokens are looked up."""
    if not isinstance(prompt, list):
        return _text(prompt)
    parts = [_text(part) if isinstance(part, PromptObject) else part for part in prompt]
    kinds = {type(part) for part in parts}
    inside = any(isinstance(one, str) for part in parts if isinstance(part, list) for one in part)
    if len(kinds) < 2 and not inside:
        return parts
    texts = sum(isinstance(one, str) for part in parts for one in (part if isinstance(part, list) else [part]))
    if texts > MOST_TEXTS:
        raise bad_request(f"prompt: at most {MOST_TEXTS} texts are taken beside token ids.", "prompt")
    if int in kinds:
        if list in kinds:
            raise bad_request("prompt: token ids stand beside lists of such.", "prompt")
        return await _ids(parts, tokenize)
    return [await _ids(part if isinstance(part, list) else [part], tokenize) for part in parts]


async def _ids(parts: list[Any], tokenize: Tokenize) -> list[int]:
    """Of one prompt that is made of ids and texts."""
    found: list[int] = []
    for part in parts:
        found += await tokenize(part, not found) if isinstance(part, str) else [part]
    return found


def _text(prompt: str | PromptObject) -> str:
    return prompt if isinstance(prompt, str) else prompt.prompt_string


def completion_of(body: LlamaCompletionRequest) -> TokensRequest:
    """The completion."""
    refused = NOTHING if isinstance(body, LlamaInfillRequest) else NOTHING | HINTS
    for field, nothing in refused.items():
        value = getattr(body, field)
        if value is not None and value not in nothing:
            raise bad_request(f"{field} is not supported; leave it out.", field)
    given: Object = {name: value for name in SAME if (value := getattr(body, name)) not in (None, "")}
    given |= {"prompt": body.prompt, "return_token_ids": True}
    if body.typical_p == 0:
        del given["typical_p"]
    if body.n_cmpl is not None:
        given["n"] = body.n_cmpl
    if body.n_predict is not None and body.n_predict >= 0:
        given["max_tokens"] = max(1, body.n_predict)  # what is drawn at the prompt's end nobody is told
    if body.repeat_penalty is not None:
        given["repetition_penalty"] = body.repeat_penalty
    if body.seed is not None and body.seed >= 0:
        given["seed"] = body.seed
    if body.n_probs is not None and body.n_probs > 0:
        given["logprobs"] = body.n_probs
    if body.logit_bias:
        given["logit_bias"] = _biases(body.logit_bias)
    return decode(TokensRequest, encoded(given | unused(body.samplers or [], body.mirostat), None))


class _Texts(msgspec.Struct):
    content: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


def has_content(raw: bytes) -> bool:
    """Is a body of /embeddings one of this API?"""
    try:
        return bytes(msgspec.json.decode(raw, type=_Texts).content) not in (b"", b"null")
    except msgspec.DecodeError:  # whoever reads it whole says what is wrong
        return False


def embedding_of(body: LlamaEmbeddingRequest) -> EmbeddingRequest:
    """What /v1/embeddings takes."""
    if (body.content is None) == (body.input is None):
        raise bad_request("Either content or input must be given.", "content")
    if body.embd_normalize not in (None, -1, 2):
        raise bad_request("embd_normalize must be 2 (vectors of the length 1) or -1 (none).", "embd_normalize")
    given = body.input if body.content is None else body.content
    return EmbeddingRequest(model=body.model, input=given, normalize=body.embd_normalize != -1)


def check_scales(scales: list[LlamaScale], adapters: Collection[int]) -> None:
    """Only that none is added to all answers can be had: a request has the adapter that it names."""
    for index, one in enumerate(scales):
        path = f"[{index}]"
        if one.id not in adapters:
            raise bad_request(f"{path}.id: there is no adapter {one.id}.", f"{path}.id")
        if one.scale != 0:
            text = "no adapter is added to all answers; a request that names it as its model has it whole."
            raise bad_request(f"{path}.scale: {text}", f"{path}.scale")


def infill_of(body: LlamaInfillRequest, special: Mapping[str, int]) -> list[int]:
    """Gives it the prompt that asks for what stands between; the tokens that end that. `special`: the tokenizer's
    special tokens.
    """
    tokens = infill_tokens(special, "input_suffix")
    extra = [(file.filename or f"file{number}", file.text) for number, file in enumerate(body.input_extra or [])]
    body.prompt = tokens.prompt(body.input_prefix, body.input_suffix, files_of(extra, special)) + (body.prompt or "")
    return [] if body.ignore_eos else infill_ends(special, tokens)


def texts_of(given: Biases | None) -> list[str]:
    """Those that stand for their tokens."""
    names = [name for name, _ in given] if isinstance(given, list) else list(given or ())
    return [name for name in names if isinstance(name, str) and not name.isdecimal()]


def by_tokens(given: Biases, tokens: Mapping[str, list[int]]) -> Biases:
    """With the ids of texts in their place."""
    pairs = given.items() if isinstance(given, dict) else given
    return [(token, bias) for name, bias in pairs for token in tokens.get(str(name), [name])]


def _biases(given: Biases) -> dict[str, float]:
    pairs = given.items() if isinstance(given, dict) else given
    found: dict[str, float] = {}
    for token, bias in pairs:
        if bias is True:
            raise bad_request("logit_bias: a bias is a number, or false for a token that must not come.", "logit_bias")
        found[str(token)] = NEVER if bias is False else bias
    return found
