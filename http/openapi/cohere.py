"""The answers of Cohere's API as msgspec structs, for /openapi.json. They may say more than is in them here."""

from __future__ import annotations

from typing import Any

import msgspec

from .answers import Said

Object = dict[str, Any]


class CohereError(Said):
    id: str | None
    message: str


class CohereUsage(Said):
    billed_units: Object
    tokens: Object
    cached_tokens: int


class CohereAnswer(msgspec.Struct):
    id: str
    message: Object
    finish_reason: str
    usage: CohereUsage


class CohereEvent(msgspec.Struct):
    type: str


class CohereFloats(msgspec.Struct):
    """`embeddings` are by type where types are asked for."""

    id: str
    embeddings: list[list[float]] | dict[str, list[Any]]
    texts: list[str]
    meta: Object


class CohereLabels(Said):
    id: str
    classifications: list[Object]
    meta: Object


class CohereKey(msgspec.Struct):
    valid: bool


class CohereVectors(msgspec.Struct):
    id: str
    embeddings: dict[str, list[Any]]
    texts: list[str]
    meta: Object


class CohereAnswerV1(msgspec.Struct):
    response_id: str
    generation_id: str
    text: str
    chat_history: list[Object]
    finish_reason: str
    meta: Object
    tool_calls: list[Object] | msgspec.UnsetType = msgspec.UNSET


class CohereEventV1(msgspec.Struct):
    is_finished: bool
    event_type: str
