"""The answers of SGLang's own API as msgspec structs, for /openapi.json. They may say more than is in them here."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

Object = dict[str, Any]


class SglangMeta(msgspec.Struct, kw_only=True):
    id: str
    finish_reason: Object | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: str
    e2e_latency: float | UnsetType = UNSET


class SglangPart(msgspec.Struct, kw_only=True):
    """An event of a stream, or the whole answer to one prompt: all that has come of it."""

    text: str
    output_ids: list[int]
    meta_info: SglangMeta
    index: int | UnsetType = UNSET


class SglangEncodeMeta(msgspec.Struct):
    id: str
    prompt_tokens: int


class SglangVector(msgspec.Struct):
    embedding: list[float]
    meta_info: SglangEncodeMeta


class SglangModel(msgspec.Struct):
    model_path: str
    tokenizer_path: str
    is_generation: bool
    weight_version: str
    has_image_understanding: bool
    has_audio_understanding: bool
    model_type: str | None
    architectures: list[str] | None


class SglangServer(msgspec.Struct):
    version: str
    model_path: str
    served_model_name: str
    context_length: int
    max_running_requests: int
    internal_states: list[Object]


class SglangPaused(msgspec.Struct):
    message: str
    status: str


class SglangAdapters(msgspec.Struct):
    success: bool
    error_message: str
    loaded_adapters: dict[str, str]


class SglangCall(msgspec.Struct):
    tool_index: int
    name: str
    parameters: str  # JSON, as the model wrote it


class SglangCalls(msgspec.Struct):
    normal_text: str
    calls: list[SglangCall]


class SglangReasoning(msgspec.Struct):
    reasoning_text: str
    text: str


class SglangLoads(msgspec.Struct):
    timestamp: str
    version: str
    accelerator: None
    num_accelerators: int
    loads: list[Object]
