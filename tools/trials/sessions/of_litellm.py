"""litellm: its ways to chat completions, responses and messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import litellm
from told import HELLO, MODEL, OSLO, REPORT, ROOT, URL, WEATHER, Report, told

CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": CITY}}


def asked(word: str) -> list[Any]:
    return [{"role": "user", "content": f"@{word}"}]


def called(message: Any) -> list[Any]:
    return [json.loads(call.function.arguments) for call in message.tool_calls[:1]]


def steps(way: str, base: str) -> dict[str, Callable[[], Any]]:
    def ask(word: str, **more: Any) -> Any:
        messages = more.pop("messages", asked(word))
        where = {"model": f"{way}/{MODEL}", "api_base": base, "api_key": "none", "num_retries": 0, "max_tokens": 300}
        return litellm.completion(messages=messages, **{**where, **more})

    def said(word: str, **more: Any) -> Any:
        return ask(word, **more).choices[0].message

    def built(word: str, **more: Any) -> Any:
        return litellm.stream_chunk_builder(list(ask(word, stream=True, **more))).choices[0].message

    def trip() -> str:
        first = said("tool", tools=[TOOL])
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "7 degrees"}
        return str(said("", messages=[*asked("tool"), first.model_dump(), result], tools=[TOOL]).content)

    named = {"type": "function", "function": {"name": "get_weather"}}
    return {
        f"{way} chat": lambda: said("hello").content,
        f"{way} streamed chat": lambda: built("hello").content,
        f"{way} call": lambda: called(said("tool", tools=[TOOL])),
        f"{way} named call": lambda: called(said("any", tools=[TOOL], tool_choice=named)),
        f"{way} required call": lambda: called(said("any", tools=[TOOL], tool_choice="required")),
        f"{way} call's trip": trip,
        f"{way} report": lambda: Report.model_validate_json(said("any", response_format=Report).content),
        f"{way} error": lambda: said("hello", temperature=9),
        # where litellm makes chat's chunks of Responses' events it says a call's arguments twice
        **({} if "/" in way else {f"{way} streamed call": lambda: called(built("tool", tools=[TOOL]))}),
    }


every = {
    name: step
    for way, base in (("openai", URL), ("hosted_vllm", URL), ("openai/responses", URL), ("anthropic", ROOT))
    for name, step in steps(way, base).items()
}
of_cohere = ("chat", "streamed chat", "call", "streamed call", "error")
for way, base in (("cohere_chat", f"{ROOT}/v2/chat"), ("cohere_chat/v1", f"{ROOT}/v1/chat")):
    found = steps(way, base)
    every |= {name: step for name, step in found.items() if name.removeprefix(f"{way} ") in of_cohere}
told(every, chat=HELLO, call=[OSLO], trip=WEATHER, report=REPORT, error="temperature must be")
