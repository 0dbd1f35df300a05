"""What an answer says, whole or streamed, in any door's dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..wire import Answer
from . import others_answers, own_answers
from .asked import Asked
from .said import Said


def said(asked: Asked, answer: Answer) -> Said:
    found = Said()
    if asked.stream and asked.door != "embeddings":
        STREAMS.get(asked.door, own_answers.openai_stream)(found, _events(asked, answer))
    else:
        WHOLES.get(asked.door, own_answers.openai)(found, answer.json)
    return found


def _events(asked: Asked, answer: Answer) -> list[Any]:
    if asked.door.startswith("ollama"):
        return [json.loads(line) for line in answer.body.splitlines()]
    return [data if data == "[DONE]" else json.loads(data) for data in answer.events]


WHOLES: dict[str, Callable[[Said, Any], None]] = {
    **{
        "responses": own_answers.response,
        "messages": own_answers.message,
        "ollama_chat": others_answers.ollama,
        "ollama_generate": others_answers.ollama,
    },
    **{
        "llamacpp": others_answers.llama,
        "cohere": others_answers.cohere,
        "tgi": others_answers.tgi,
        "sglang": others_answers.sglang,
    },
}


def _each(read: Callable[[Said, Any], None]) -> Callable[[Said, list[Any]], None]:
    def stream(found: Said, events: list[Any]) -> None:
        for event in events:
            read(found, event)

    return stream


STREAMS: dict[str, Callable[[Said, list[Any]], None]] = {
    **{
        "responses": own_answers.response_stream,
        "messages": own_answers.message_stream,
        "llamacpp": _each(others_answers.llama),
        "cohere": others_answers.cohere_stream,
    },
    **{
        "ollama_chat": _each(others_answers.ollama),
        "ollama_generate": _each(others_answers.ollama),
        "tgi": others_answers.tgi_stream,
        "sglang": others_answers.sglang_stream,
    },
}
