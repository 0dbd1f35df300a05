"""The answers of Ollama's API as msgspec structs, for /openapi.json. They may say more than is in them here."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from .answers import Said

Object = dict[str, Any]


class OllamaError(Said):
    error: str


class OllamaSaid(msgspec.Struct):
    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[Object] | UnsetType = UNSET


class OllamaRecord(msgspec.Struct, kw_only=True):
    """A line of a stream, or the whole answer; the last line has the counts and times, which are ns."""

    model: str
    created_at: str
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[Object] | UnsetType = UNSET


class OllamaMessageRecord(OllamaRecord, kw_only=True):
    message: OllamaSaid


class OllamaTextRecord(OllamaRecord, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET  # in the last one, to be sent with the next prompt


class OllamaVectors(Said):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(Said):
    embedding: list[float]


class OllamaModels(Said):
    models: list[Object]


class OllamaShown(msgspec.Struct):
    template: str
    capabilities: list[str]
    details: Object
    model_info: Object
    license: str | msgspec.UnsetType = msgspec.UNSET  # where a text of one lies in the model's folder


class OllamaStatus(Said):
    status: str


class OllamaVersion(Said):
    version: str
