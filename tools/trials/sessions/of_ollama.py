"""ollama: its own client, for the ways under /api."""

from __future__ import annotations

from typing import Any

import ollama
from told import EMBEDDER, HELLO, MODEL, OSLO, REPORT, ROOT, WEATHER, WIDTH, Report, told

client = ollama.Client(ROOT)


def get_weather(city: str) -> str:
    """The weather.

    Args:
        city: where
    """
    return f"7 degrees in {city}"


def asked(word: str) -> list[Any]:
    return [{"role": "user", "content": f"@{word}"}]


def streamed(word: str, **more: Any) -> list[Any]:
    """All parts of an answer, of which the last has its counts."""
    parts = list(client.chat(MODEL, asked(word), stream=True, **more))
    assert parts[-1].done and parts[-1].eval_count, parts[-1]
    return parts


def called(message: Any) -> Any:
    return message.tool_calls[0].function.arguments


def trip() -> Any:
    first = client.chat(MODEL, asked("tool"), tools=[get_weather]).message
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather(**called(first))}
    return client.chat(MODEL, [*asked("tool"), first, result], tools=[get_weather]).message.content


def streamed_call() -> Any:
    return next(called(part.message) for part in streamed("tool", tools=[get_weather]) if part.message.tool_calls)


def report() -> Any:
    said = client.chat(MODEL, asked("any"), format=Report.model_json_schema()).message.content
    return Report.model_validate_json(said or "")


told(
    {
        "chat": lambda: client.chat(MODEL, asked("hello")).message.content,
        "streamed chat": lambda: "".join(part.message.content or "" for part in streamed("hello")),
        "generated chat": lambda: client.generate(MODEL, "@hello", options={"num_ctx": 2048, "top_k": 5}).response,
        "call": lambda: called(client.chat(MODEL, asked("tool"), tools=[get_weather]).message),
        "streamed call": streamed_call,
        "call's trip": trip,
        "report": report,
        "list": lambda: MODEL in {model.model for model in client.list().models},
        "what it can list": lambda: "tools" in (client.show(MODEL).capabilities or ()),
        "vectors": lambda: [len(vector) for vector in client.embed(EMBEDDER, ["one", "two"]).embeddings],
        "error": lambda: client.chat("nobody", asked("hello")),
    },
    chat=HELLO,
    call=OSLO,
    trip=WEATHER,
    report=REPORT,
    list=True,
    vectors=[WIDTH, WIDTH],
    error="`nobody` does not exist",
)
