"""langchain-openai and langgraph: chat completions and responses."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any, Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.prebuilt import create_react_agent
from told import EMBEDDER, HELLO, MODEL, OSLO, REPORT, URL, WEATHER, WIDTH, Report, told

WHERE: dict[str, Any] = {"model": MODEL, "base_url": URL, "api_key": "none", "max_retries": 0}


@tool
def get_weather(city: Literal["Oslo"]) -> str:
    """The weather."""
    return "7 degrees"


def text(message: Any) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def streamed(chat: Any, prompt: str) -> Any:
    return reduce(add, chat.stream(prompt))


def called(message: Any) -> list[dict[str, str]]:
    return [call["args"] for call in message.tool_calls[:1]]


def steps(api: str, chat: ChatOpenAI) -> dict[str, Callable[[], Any]]:
    tools = chat.bind_tools([get_weather])
    agent = create_react_agent(chat, [get_weather])
    asked: Any = {"messages": [("user", "@tool")]}
    return {
        f"{api} chat": lambda: text(chat.invoke("@hello")),
        f"{api} streamed chat": lambda: text(streamed(chat, "@hello")),
        f"{api} call": lambda: called(tools.invoke("@tool")),
        f"{api} streamed call": lambda: called(streamed(tools, "@tool")),
        f"{api} strict call": lambda: called(chat.bind_tools([get_weather], strict=True).invoke("@tool")),
        f"{api} named call": lambda: called(chat.bind_tools([get_weather], tool_choice="get_weather").invoke("@any")),
        f"{api} required call": lambda: called(chat.bind_tools([get_weather], tool_choice="any").invoke("@any")),
        f"{api} agent's trip": lambda: text(agent.invoke(asked)["messages"][-1]),
        f"{api} report": lambda: chat.with_structured_output(Report).invoke("@any"),
        f"{api} call's report": lambda: chat.with_structured_output(Report, method="function_calling").invoke("@any"),
        f"{api} call beside a format's call": lambda: called(
            chat.bind_tools([get_weather], response_format=Report, strict=True).invoke("@silent")
        ),
        f"{api} error": lambda: chat.bind(temperature=9).invoke("@hello"),
    }


both = steps("chat", ChatOpenAI(**WHERE)) | steps("responses", ChatOpenAI(**WHERE, use_responses_api=True))


def embedded(**more: Any) -> list[int]:
    """How long the vectors are, of one text and of several."""
    embedder = OpenAIEmbeddings(**{**WHERE, "model": EMBEDDER}, **more)
    return [len(one) for one in (embedder.embed_query("a"), *embedder.embed_documents(["b", "c"]))]


both["embeddings, their widths"] = lambda: embedded(check_embedding_ctx_length=False)
told(both, chat=HELLO, call=[OSLO], trip=WEATHER, report=REPORT, error="temperature must be", widths=[WIDTH] * 3)
