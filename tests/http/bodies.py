"""Bodies on the way that the app sends them, up to what the engine gets."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.request import Generation
from actorserve.actors.protocol.topics.prompts import ChatPrompt
from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.fields.ranges import check_fields
from actorserve.http.generation.fields.sampling import parameters
from actorserve.http.generation.prompts import chat_prompt, completion_prompts
from actorserve.http.openai.schemas import ChatRequest, CompletionRequest, GenerationFields

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def chat(body: bytes) -> tuple[ChatPrompt, list[Generation]]:
    """All that a chat request passes before it reaches the engine."""
    request = decode(ChatRequest, body)
    check_fields(request)
    made = generations(request)
    return chat_prompt(request), made


def complete(body: bytes) -> tuple[list[Any], list[Generation]]:
    request = decode(CompletionRequest, body)
    check_fields(request)
    made = generations(request)
    return list(completion_prompts(request)), made


def generations(
    request: GenerationFields, defaults: dict[str, float] | None = None, name: str = "id"
) -> list[Generation]:
    return [
        msgspec.msgpack.decode(params, type=Generation)
        for params in parameters(request, {} if defaults is None else defaults, name)
    ]


def body_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def for_chat(**fields: Any) -> tuple[ChatPrompt, list[Generation]]:
    return chat(body_of(**{"messages": HI, **fields}))


def for_completion(**fields: Any) -> tuple[list[Any], list[Generation]]:
    return complete(body_of(**{"prompt": "hi", **fields}))


def refusal(call: Any, *args: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        call(*args, **fields)
    assert raised.value.message and raised.value.status in (400, 404)
    return raised.value


BIG = 1 << 70
