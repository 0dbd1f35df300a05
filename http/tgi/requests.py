"""Requests of Text Generation Inference's API to the completion that asks for the same."""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import ApiError, bad_request
from ..generation.adapter import encoded, with_names
from ..generation.fields.decoding import decode
from ..openai.schemas import Object, TokensRequest
from .schemas import INSIDE, MOST_NEW_TOKENS, NOTHING, GenerateFields, TgiGrammar, TgiParameters, TgiRequest

SAME = ("top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty", "seed", "stop", "temperature")
OTHERS = {  # of ours, what they are called there
    "max_tokens": "max_new_tokens",
    "truncate_prompt_tokens": "truncate",
    "logprobs": "top_n_tokens",
    "structured_outputs": "grammar",
}
NAMES = {
    **{name: f"{INSIDE}.{name}" for name in SAME},
    **{ours: f"{INSIDE}.{theirs}" for ours, theirs in OTHERS.items()},
    "prompt": "inputs",
}


def is_tgi(raw: bytes) -> bool:
    """Is a body of /generate of this API?"""
    try:
        given = msgspec.json.decode(raw, type=GenerateFields)
    except msgspec.DecodeError:  # whoever reads it whole says what is wrong
        return False
    has_inputs, *others = (bytes(one) not in (b"", b"null") for one in (given.inputs, given.text, given.input_ids))
    return has_inputs and not any(others)


def parameters_of(body: TgiRequest) -> TgiParameters:
    return body.parameters or TgiParameters()


def completion_of(body: TgiRequest, stream: bool) -> TokensRequest:
    """The completion. Tokens are told by their logprobs, which a stream and details have."""
    given = parameters_of(body)
    for field, nothing in NOTHING.items():
        value = getattr(given, field)
        if value is not None and value not in nothing:
            raise bad_request(f"{INSIDE}.{field} is not supported; leave it out.", f"{INSIDE}.{field}")
    fields: Object = {name: getattr(given, name) for name in SAME}
    if not _draws(given):
        fields["temperature"] = 0
    fields |= {
        "prompt": body.inputs,
        "stream": stream,
        "max_tokens": MOST_NEW_TOKENS if given.max_new_tokens is None else given.max_new_tokens,
        "truncate_prompt_tokens": given.truncate,
        "include_stop_str_in_output": True,
        "model": body.model or given.adapter_id,
        "structured_outputs": None if given.grammar is None else _outputs(given.grammar),
    }
    if stream or given.details:
        fields["logprobs"] = given.top_n_tokens or 0
    return decode(TokensRequest, encoded({name: value for name, value in fields.items() if value is not None}, None))


def renamed(error: ApiError, body: TgiRequest) -> ApiError:
    """An error of the completion that names the field as this API does."""
    adapter = parameters_of(body).adapter_id and not body.model
    return with_names(error, NAMES | ({"model": f"{INSIDE}.adapter_id"} if adapter else {}))


def _draws(given: TgiParameters) -> bool:
    """Does anything ask for more than the likeliest token?"""
    neutral: dict[str, Any] = {"temperature": 1, "top_k": 0, "top_p": 1, "typical_p": 1}
    return bool(given.do_sample) or any(getattr(given, name) not in (None, off) for name, off in neutral.items())


def _outputs(grammar: TgiGrammar) -> Object:
    """As structured_outputs has it."""
    value, path = grammar.value, f"{INSIDE}.grammar.value"
    if grammar.type == "regex":
        if not isinstance(value, str):
            raise bad_request(f"{path} must be a text.", path)
        return {"regex": value}
    if grammar.type == "json_schema":
        value = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(value, dict | str):
        raise bad_request(f"{path} must be a JSON schema.", path)
    return {"json": value}
