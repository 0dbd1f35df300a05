"""The body of Text Generation Inference's API as msgspec structs. null means absent for every field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MOST_NEW_TOKENS = 100  # where a request does not say
MOST_TOP_TOKENS = 20
INSIDE = "parameters"
NOTHING: dict[str, tuple[object, ...]] = {  # of parameters: refused unless they have one of these values
    "best_of": (1,),
    "decoder_input_details": (False,),
    "watermark": (False,),
}


class TgiGrammar(msgspec.Struct):
    """What the text has to be. A JSON schema may stand beside its name, as `json_schema` has it."""

    type: Literal["json", "json_schema", "regex"]
    value: Any


class TgiParameters(msgspec.Struct, kw_only=True):
    """How to generate. The likeliest tokens are taken unless something here asks for draws."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_new_tokens: int | None = None
    stop: list[str] | None = None
    truncate: Annotated[int, Meta(ge=1)] | None = None  # so many tokens of the prompt, its last
    return_full_text: bool | None = None
    details: bool | None = None
    top_n_tokens: Annotated[int, Meta(ge=0, le=MOST_TOP_TOKENS)] | None = None
    grammar: TgiGrammar | None = None
    adapter_id: str | None = None  # an adapter's name

    best_of: int | None = None  # these are in NOTHING
    decoder_input_details: bool | None = None
    watermark: bool | None = None


class TgiRequest(msgspec.Struct, kw_only=True):
    """POST /, /generate and /generate_stream."""

    inputs: Annotated[str, Meta(min_length=1)]
    parameters: TgiParameters | None = None
    stream: bool | None = None  # of POST /
    model: str | None = None


class GenerateFields(msgspec.Struct):
    """What of a body of /generate tells whose it is: the other's, SGLang's, has a text or token ids."""

    inputs: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    text: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    input_ids: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
