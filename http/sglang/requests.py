"""Requests of SGLang's own API to the completion, or the embeddings, that ask for the same."""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import ApiError, bad_request
from ..generation.adapter import encoded, with_names
from ..generation.fields.decoding import decode
from ..openai.schemas import GenerativeScoringRequest, Object, TokensRequest
from ..pooling.schemas import EmbeddingRequest
from .names import one_of
from .schemas import (
    INSIDE,
    MEDIA,
    MOST_NEW_TOKENS,
    NOTHING,
    REFUSED,
    SglangEncodeRequest,
    SglangGenerateRequest,
    SglangSampling,
    SglangScoringRequest,
)

SAME = (  # sampling parameters that have the same names
    *("n", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("logit_bias", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens"),
    *("stream_interval", "json_schema", "regex", "ebnf"),
)
OTHERS = {  # of ours, what they are called there
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "include_stop_str_in_output": "no_stop_trim",
    "response_format": "structural_tag",
}
NAMES = {
    **{name: f"{INSIDE}.{name}" for name in SAME},
    **{ours: f"{INSIDE}.{theirs}" for ours, theirs in OTHERS.items()},
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "logprob_start_len",
    "logprob_token_ids": "token_ids_logprob",
    "cache_salt": "extra_key",
    "request_id": "rid",
}


def sampling_of(body: SglangGenerateRequest) -> SglangSampling:
    """How to generate, the same for all prompts."""
    return one_of(body.sampling_params, INSIDE) or SglangSampling()


def start_of(body: SglangGenerateRequest) -> int:
    """From which position on the prompt's logprobs are wanted; -1: from none."""
    start = one_of(body.logprob_start_len, "logprob_start_len")
    if start is not None and start < -1:
        raise bad_request(f"logprob_start_len must be at least -1, not {start}.", "logprob_start_len")
    return -1 if start is None or not wants_logprobs(body) else start


def wants_logprobs(body: SglangGenerateRequest) -> bool:
    return bool(one_of(body.return_logprob, "return_logprob"))


def wants_states(body: SglangGenerateRequest) -> bool:
    return bool(one_of(body.return_hidden_states, "return_hidden_states"))


def more_told(body: SglangGenerateRequest) -> Object:
    """What choices are told beyond those of a completion, by the names of Sampling."""
    return {"lists_prompt": bool(body.token_ids_logprob)}


def is_batch(body: SglangGenerateRequest | SglangEncodeRequest) -> bool:
    """Is it answered with a list, whatever it has?"""
    ids = body.input_ids
    return isinstance(body.text, list) or (isinstance(ids, list) and bool(ids) and isinstance(ids[0], list))


def completion_of(body: SglangGenerateRequest) -> TokensRequest:
    """The completion. An answer of no token is one that is not told (max_new_tokens 0)."""
    _check(body)
    given = sampling_of(body)
    for field, nothing in NOTHING.items():
        value = getattr(given, field)
        if value is not None and value not in nothing:
            raise bad_request(f"{INSIDE}.{field} is not supported; leave it out.", f"{INSIDE}.{field}")
    fields: Object = {name: value for name in SAME if (value := getattr(given, name)) not in (None, "", {}, [])}
    if given.json_schema == {}:  # any JSON
        fields["json_schema"] = {}
    for ours, theirs in OTHERS.items():
        if (value := getattr(given, theirs)) is not None:
            fields[ours] = value
    if given.structural_tag is not None:
        fields["response_format"] = _structural_tag(given.structural_tag)
    fields["max_tokens"] = MOST_NEW_TOKENS if given.max_new_tokens is None else given.max_new_tokens or 1
    fields |= {"prompt": _prompt(body), "return_token_ids": True, "stream": bool(body.stream)}
    fields |= _logprobs(body)
    fields |= {
        "model": body.model or one_of(body.lora_path, "lora_path"),
        "priority": body.priority,
        "return_hidden_states": wants_states(body) or None,
        "cache_salt": body.cache_salt or one_of(body.extra_key, "extra_key"),
        "request_id": body.rid if isinstance(body.rid, str) else None,
    }
    if body.session_params is not None:
        fields["session_params"] = msgspec.to_builtins(body.session_params)
    return decode(TokensRequest, encoded({name: value for name, value in fields.items() if value is not None}, None))


def embedding_of(body: SglangEncodeRequest) -> EmbeddingRequest:
    """The embeddings."""
    _check(body)
    fields = {"input": _prompt(body), "model": body.model, "priority": body.priority, "dimensions": body.dimensions}
    fields["request_id"] = body.rid if isinstance(body.rid, str) else None
    return decode(EmbeddingRequest, encoded({name: value for name, value in fields.items() if value is not None}, None))


def scoring_of(body: SglangScoringRequest) -> GenerativeScoringRequest:
    """What asks for the same of vLLM's path."""
    if not body.label_token_ids:
        raise bad_request("label_token_ids must not be empty.", "label_token_ids")
    items: list[str | list[int]] = [body.items] if isinstance(body.items, str) else body.items
    if any(isinstance(item, str) != isinstance(body.query, str) for item in items):
        raise bad_request("items: they and the query must be texts, or all of them token ids.", "items")
    return GenerativeScoringRequest(
        query=body.query,
        items=items,
        label_token_ids=body.label_token_ids,
        model=body.model,
        apply_softmax=bool(body.apply_softmax),
        item_first=body.item_first,
    )


def joined_prompts(body: GenerativeScoringRequest) -> list[str | int | list[int]]:
    """Query and item as one text, or as one list of ids."""
    query: Any = body.query
    pairs: list[Any] = [(item, query) if body.item_first else (query, item) for item in body.items]
    return [one + other for one, other in pairs]


def renamed(error: ApiError, body: SglangGenerateRequest | SglangEncodeRequest) -> ApiError:
    """The error with the names that this API has for fields."""
    prompt = "input_ids" if body.text is None else "text"
    model = "lora_path" if isinstance(body, SglangGenerateRequest) and not body.model and body.lora_path else "model"
    return with_names(error, NAMES | {"prompt": prompt, "input": prompt, "messages": prompt, "model": model})


def _check(body: SglangGenerateRequest | SglangEncodeRequest) -> None:
    refused = REFUSED if isinstance(body, SglangGenerateRequest) else REFUSED | MEDIA
    for field in sorted(refused & set(body.__struct_fields__)):
        if getattr(body, field) not in (None, False, [], {}, 0):
            raise bad_request(f"{field} is not supported by this server yet.", field)
    if (body.text is None) == (body.input_ids is None):
        raise bad_request("Either text or input_ids is needed.", "text")
    count = len(_prompt(body)) if is_batch(body) else 1
    if isinstance(body.rid, list) and len(body.rid) != count:
        raise bad_request(f"rid has {len(body.rid)} ids for {count} prompts.", "rid")


def _prompt(body: SglangGenerateRequest | SglangEncodeRequest) -> Any:
    return body.input_ids if body.text is None else body.text


def _logprobs(body: SglangGenerateRequest) -> Object:
    """Of the answer, and from a position on of the prompt."""
    if not wants_logprobs(body):
        return {}
    wanted: Object = {"logprobs": one_of(body.top_logprobs_num, "top_logprobs_num") or 0}
    if start_of(body) >= 0:
        wanted["prompt_logprobs"] = wanted["logprobs"]
    ids: Any = body.token_ids_logprob
    if ids and isinstance(ids[0], list):
        ids = one_of(ids, "token_ids_logprob")
    if ids:
        if wanted["logprobs"]:
            text = "token_ids_logprob: of these tokens, or of the likeliest (top_logprobs_num), not of both."
            raise bad_request(text, "token_ids_logprob")
        wanted["logprob_token_ids"] = ids
    return wanted


def _structural_tag(given: Object | str) -> Object:
    """As response_format has it; it may come as the text of its JSON."""
    if isinstance(given, str):
        given = decode(dict[str, Any], given.encode(), f"{INSIDE}.structural_tag")
    return {"type": "structural_tag"} | given
