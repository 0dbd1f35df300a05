"""Haystack: chat completions, responses and Ollama's chats, with its embedders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from haystack_integrations.components.embedders.ollama import OllamaTextEmbedder
from haystack_integrations.components.generators.ollama import OllamaChatGenerator
from told import EMBEDDER, HELLO, MODEL, OSLO, REPORT, ROOT, URL, WEATHER, WIDTH, Report, told

KEY = Secret.from_token("none")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = Tool("get_weather", "The weather.", SCHEMA, function=lambda city: f"7 degrees in {city}")


def chats(**more: Any) -> Any:
    return OpenAIChatGenerator(KEY, MODEL, api_base_url=URL, **more)


def responses(**more: Any) -> Any:
    return OpenAIResponsesChatGenerator(api_key=KEY, model=MODEL, api_base_url=URL, **more)


def ollama(**more: Any) -> Any:
    return OllamaChatGenerator(MODEL, ROOT, **more)


def said(generator: Any, word: str, *more: ChatMessage) -> Any:
    return generator.run([ChatMessage.from_user(f"@{word}"), *more])["replies"][0]


def streamed(make: Callable[..., Any], word: str, **more: Any) -> Any:
    """The answer, which came in several parts."""
    parts: list[Any] = []
    answer = said(make(streaming_callback=parts.append, **more), word)
    assert len(parts) > 1, parts
    return answer


def trip(generator: Any) -> Any:
    first = said(generator, "tool")
    result = ChatMessage.from_tool("7 degrees in Oslo", origin=first.tool_calls[0])
    return said(generator, "tool", first, result).text


def steps(name: str, make: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    return {
        f"{name} chat": lambda: said(make(), "hello").text,
        f"{name} streamed chat": lambda: streamed(make, "hello").text,
        f"{name} call": lambda: said(make(tools=[TOOL]), "tool").tool_calls[0].arguments,
        f"{name} streamed call": lambda: streamed(make, "tool", tools=[TOOL]).tool_calls[0].arguments,
        f"{name} trip": lambda: trip(make(tools=[TOOL])),
        f"{name} error": lambda: said(make(generation_kwargs={"top_p": 9}), "hello"),
    }


def report(generator: Any) -> Report:
    return Report.model_validate_json(said(generator, "any").text)


told(
    {
        **steps("chats", chats),
        **steps("responses", responses),
        **steps("ollama", ollama),
        "chats report": lambda: report(chats(generation_kwargs={"response_format": Report})),
        "responses report": lambda: report(responses(generation_kwargs={"text_format": Report})),
        "ollama report": lambda: report(ollama(response_format=Report.model_json_schema())),
        "vectors": lambda: len(OpenAITextEmbedder(KEY, EMBEDDER, api_base_url=URL).run("one")["embedding"]),
        "ollama vectors": lambda: len(OllamaTextEmbedder(EMBEDDER, ROOT).run("one")["embedding"]),
    },
    chat=HELLO,
    call=OSLO,
    trip=WEATHER,
    report=REPORT,
    vectors=WIDTH,
    error="top_p must be",
)
