"""mistralai: chats, streamed and not, calls, prefixes and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mistralai.client import Mistral
from told import HELLO, MODEL, OSLO, REPORT, ROOT, WEATHER, Report, told

CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo"]}}, "required": ["city"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
client = Mistral(api_key="none", server_url=ROOT)


def said(word: str, **more: Any) -> Any:
    messages = more.pop("messages", [{"role": "user", "content": f"@{word}"}])
    return client.chat.complete(model=MODEL, messages=messages, **more).choices[0].message


def deltas(word: str, **more: Any) -> list[Any]:
    with client.chat.stream(model=MODEL, messages=[{"role": "user", "content": f"@{word}"}], **more) as stream:
        return [event.data.choices[0].delta for event in stream if event.data.choices]


def arguments(calls: Any) -> list[Any]:
    return [json.loads(call.function.arguments) for call in calls]


def streamed_calls(word: str, **more: Any) -> list[Any]:
    return arguments(call for delta in deltas(word, tools=TOOLS, **more) for call in delta.tool_calls or ())


def trip() -> str:
    first = said("tool", tools=TOOLS)
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "name": "get_weather", "content": "7 degrees"}
    return str(said("", messages=[{"role": "user", "content": "@tool"}, first, result], tools=TOOLS).content)


steps: dict[str, Callable[[], Any]] = {
    "chat": lambda: said("hello").content,
    "streamed chat": lambda: "".join(delta.content or "" for delta in deltas("hello")),
    "call": lambda: arguments(said("tool", tools=TOOLS).tool_calls),
    "streamed call": lambda: streamed_calls("tool"),
    "streamed required call": lambda: streamed_calls("any", tool_choice="any")[:1],
    "call's trip": trip,
    "parsed report": lambda: (
        client.chat.parse(Report, model=MODEL, messages=[{"role": "user", "content": "@any"}]).choices[0].message.parsed
    ),
    "error": lambda: said("hello", temperature=9),
}
told(steps, chat=HELLO, call=[OSLO], trip=WEATHER, report=REPORT, error="temperature must be")
