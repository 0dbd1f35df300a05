"""The answers of Text Generation Inference's API as msgspec structs, for /openapi.json."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from .answers import Said

Object = dict[str, Any]


class TgiError(Said):
    error: str
    error_type: str | UnsetType = UNSET


class TgiToken(Said):
    id: int
    text: str
    logprob: float | None
    special: bool


class TgiDetails(Said, kw_only=True):
    """`prefill` is empty; `input_length` is told by streams."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: list[Object] | UnsetType = UNSET
    tokens: list[TgiToken] | UnsetType = UNSET
    top_tokens: list[list[TgiToken]] | UnsetType = UNSET
    input_length: int | UnsetType = UNSET


class TgiText(Said):
    generated_text: str
    details: TgiDetails | UnsetType = UNSET


class TgiPart(Said, kw_only=True):
    """An event of a stream; the last has the text."""

    index: int
    token: TgiToken
    generated_text: str | None = None
    details: TgiDetails | None = None
    top_tokens: list[TgiToken] | UnsetType = UNSET


class TgiInfo(msgspec.Struct):
    model_id: str
    model_sha: str | None
    model_pipeline_tag: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    max_client_batch_size: int
    router: str
    version: str
