"""cohere: its own client, of both of its versions."""

from __future__ import annotations

import json
from typing import Any

import cohere
from told import EMBEDDER, HELLO, MODEL, OSLO, REPORT, ROOT, WEATHER, WIDTH, Report, told

client = cohere.ClientV2("none", base_url=ROOT)
first_version = cohere.Client("none", base_url=ROOT)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "description": "w", "parameters": CITY}}]
DOCUMENTS = ["one", "two"]


def asked(word: str) -> list[Any]:
    return [{"role": "user", "content": f"@{word}"}]


def message(word: str, **more: Any) -> Any:
    return client.chat(model=MODEL, messages=asked(word), **more).message


def streamed(word: str, **more: Any) -> list[Any]:
    """All events of an answer, of which the last has its counts."""
    events = list(client.chat_stream(model=MODEL, messages=asked(word), **more))
    assert events[0].type == "message-start" and events[-1].type == "message-end", events
    assert events[-1].delta.usage.tokens.output_tokens, events[-1]
    return events


def streamed_chat() -> str:
    return "".join(event.delta.message.content.text for event in streamed("hello") if event.type == "content-delta")


def streamed_call() -> Any:
    parts = [event for event in streamed("tool", tools=TOOLS) if event.type in ("tool-call-start", "tool-call-delta")]
    return json.loads("".join(part.delta.message.tool_calls.function.arguments for part in parts))


def trip() -> Any:
    said = message("tool", tools=TOOLS)
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "7 degrees"}
    return client.chat(model=MODEL, messages=[*asked("tool"), said, result], tools=TOOLS).message.content[0].text


def report() -> Any:
    form: Any = {"type": "json_object", "json_schema": Report.model_json_schema()}
    return Report.model_validate_json(message("any", response_format=form).content[0].text)


def vectors() -> list[int]:
    made = client.embed(model=EMBEDDER, texts=DOCUMENTS, input_type="search_query", embedding_types=["float"])
    return [len(vector) for vector in made.embeddings.float_ or ()]


told(
    {
        "chat": lambda: message("hello").content[0].text,
        "streamed chat": streamed_chat,
        "first version's chat": lambda: first_version.chat(model=MODEL, message="@hello").text,
        "call": lambda: json.loads(message("tool", tools=TOOLS).tool_calls[0].function.arguments),
        "streamed call": streamed_call,
        "call's trip": trip,
        "report": report,
        "vectors": vectors,
        "ranks": lambda: len(client.rerank(model=EMBEDDER, query="one", documents=DOCUMENTS, top_n=1).results),
        "error": lambda: message("hello", temperature=9),
    },
    chat=HELLO,
    call=OSLO,
    trip=WEATHER,
    report=REPORT,
    vectors=[WIDTH, WIDTH],
    ranks=1,
    error="temperature must be",
)
