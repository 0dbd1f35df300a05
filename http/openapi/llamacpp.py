"""The answers of llama.cpp's server as msgspec structs, for /openapi.json. They may say more than is in them here."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from .answers import Progress, Said, Timings

Object = dict[str, Any]


class LlamaErrorDetail(Said):
    code: int
    message: str
    type: str
    n_prompt_tokens: int | UnsetType = UNSET  # of a prompt that is too long
    n_ctx: int | UnsetType = UNSET


class LlamaError(Said):
    error: LlamaErrorDetail


class LlamaPart(msgspec.Struct, kw_only=True):
    """An event of a stream, or the whole answer: the last has the times. With `response_fields` a whole answer and the
    last event have those alone.
    """

    index: int | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tokens: list[int] | UnsetType = UNSET
    stop: bool | UnsetType = UNSET
    id_slot: int | UnsetType = UNSET
    tokens_predicted: int | UnsetType = UNSET
    tokens_evaluated: int | UnsetType = UNSET
    stop_type: str | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: Progress | UnsetType = UNSET


class LlamaSuccess(Said):
    success: bool


class LlamaNews(Said):
    """An event of /models/sse."""

    model: str
    event: Literal["model_status"]
    data: Object


class LlamaProps(msgspec.Struct):
    default_generation_settings: Object
    total_slots: int
    model_path: str
    chat_template: str
    build_info: str
    is_sleeping: bool


class LlamaPrompt(Said):
    prompt: str
