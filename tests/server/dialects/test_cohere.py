"""Cohere's own client against a running server: whole, streamed, thinking, tools, errors, async; and a death."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import cohere
import httpx2 as httpx
import pytest
from cohere.core.api_error import ApiError

from tests.server.api.test_tool_calls import PARIS, QWEN, ROME, TOOLS
from tests.server.dialects.conftest import LONG
from tests.support.server import Server


@pytest.fixture(scope="module")
def client(scripted_server: Server) -> cohere.ClientV2:
    return cohere.ClientV2(api_key="-", base_url=scripted_server.base_url)


def say(script: str) -> list[Any]:
    return [{"role": "user", "content": f"<{script}>"}]


class Streamed:
    """What a client puts together of a stream's events."""

    def __init__(self, events: Any) -> None:
        self.kinds: list[str] = []
        self.contents: list[dict[str, str]] = []
        self.calls: list[dict[str, str]] = []
        self.logprobs: list[int] = []
        self.end: Any = None
        for event in events:
            self.add(event)

    def add(self, event: Any) -> None:
        self.kinds.append(event.type)
        match event.type:
            case "content-start":
                self.contents.append({"type": event.delta.message.content.type, "text": ""})
                assert event.index == len(self.contents) - 1
            case "content-delta":
                part = event.delta.message.content
                self.contents[event.index]["text"] += part.text or part.thinking or ""
                self.logprobs += event.logprobs.token_ids if event.logprobs else []
            case "tool-call-start":
                call = event.delta.message.tool_calls
                self.calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
                assert event.index == len(self.calls) - 1
            case "tool-call-delta":
                self.calls[event.index]["arguments"] += event.delta.message.tool_calls.function.arguments
            case "message-end":
                self.end = event.delta


def ask(client: cohere.ClientV2, script: str, **fields: Any) -> Any:
    """The whole answer, which must be the stream's, too."""
    whole = client.chat(model="tiny", messages=say(script), **fields)
    streamed = Streamed(client.chat_stream(model="tiny", messages=say(script), **fields))
    assert streamed.kinds[0] == "message-start" and streamed.kinds[-1] == "message-end"
    starts, ends = (sum(kind.endswith(end) for kind in streamed.kinds[1:-1]) for end in ("-start", "-end"))
    assert starts == ends == len(streamed.contents) + len(streamed.calls)
    for kind in ("text", "thinking"):
        said = "".join(part["text"] for part in streamed.contents if part["type"] == kind)
        parts = [part for part in whole.message.content or [] if part.type == kind]
        assert said == "".join(getattr(part, kind) for part in parts)
    functions = [call.function for call in whole.message.tool_calls or [] if call.function is not None]
    assert [(one.name, one.arguments) for one in functions] == [
        (call["name"], call["arguments"]) for call in streamed.calls
    ]
    assert (streamed.end.finish_reason, streamed.end.usage) == (whole.finish_reason, whole.usage)
    return whole


def test_models(client: cohere.ClientV2) -> None:
    (tiny,) = client.models.list(endpoint="chat", default_only=True).models
    assert (tiny.name, tiny.endpoints, tiny.finetuned) == ("tiny", ["chat"], False)
    assert client.models.get("tiny").endpoints == ["chat"]
    assert client.models.list(endpoint="generate").models == []  # POST /v1/generate is not there


def test_a_text(client: cohere.ClientV2) -> None:
    answer = ask(client, "none")
    assert [part.text for part in answer.message.content] == [QWEN.scripts["none"]]
    assert answer.finish_reason == "COMPLETE" and len(answer.id) == 36
    assert answer.usage.tokens.input_tokens == 1 and answer.usage.tokens.output_tokens > 5


def test_a_stream_ends_as_coheres(scripted_server: Server) -> None:
    body = {"model": "tiny", "messages": say("none"), "stream": True}
    parts = httpx.post(f"{scripted_server.base_url}/v2/chat", json=body).text.split("\n\n")
    assert '"type":"message-end"' in parts[-3] and parts[-2:] == ["data: [DONE]", ""]


def test_thinking(client: cohere.ClientV2) -> None:
    thinking, text = ask(client, "answer", thinking={"type": "enabled", "token_budget": 500}).message.content
    assert thinking.thinking.strip() == "Hm, STOP" and text.text == "The answer, no STOP more"


def test_calls_and_their_results(client: cohere.ClientV2) -> None:
    answer = ask(client, "two", tools=TOOLS)
    assert [json.loads(call.function.arguments) for call in answer.message.tool_calls] == [PARIS, ROME]
    assert answer.finish_reason == "TOOL_CALL"
    results = [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": [{"type": "document", "document": {"data": {"temperature": "2°"}}}],
        }
        for call in answer.message.tool_calls
    ]
    turns = [*say("two"), answer.message, *results, *say("none")]
    last = client.chat(model="tiny", messages=turns, tools=TOOLS)
    assert (last.message.content or [])[0].text == QWEN.scripts["none"]  # type: ignore[union-attr]


def test_a_call_can_be_asked_for(client: cohere.ClientV2) -> None:
    answer = client.chat(
        model="tiny", messages=say("none"), tools=TOOLS[1:], tool_choice="REQUIRED", temperature=0, max_tokens=200
    )
    assert answer.message.tool_calls and answer.message.tool_calls[0].function.name == "now"  # type: ignore[union-attr]


def test_stops_and_limits(client: cohere.ClientV2) -> None:
    stopped = ask(client, "none", stop_sequences=["needed"], k=1, p=0.9, seed=3)
    assert stopped.finish_reason == "STOP_SEQUENCE" and stopped.message.content[0].text == "No <tool> is "
    assert ask(client, "none", max_tokens=3).finish_reason == "MAX_TOKENS"
    for no_limit in (1_000_000, -1):
        assert ask(client, "none", max_tokens=no_limit).finish_reason == "COMPLETE"


def test_a_format_is_enforced(client: cohere.ClientV2) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"type": "json_object", "json_schema": schema}
    answer = client.chat(model="tiny", messages=say("none"), response_format=form, temperature=0)
    assert [json.loads(part.text) for part in answer.message.content or [] if part.type == "text"] == [{"a": 1}]


def test_logprobs(client: cohere.ClientV2) -> None:
    whole = client.chat(model="tiny", messages=say("none"), logprobs=True)
    streamed = Streamed(client.chat_stream(model="tiny", messages=say("none"), logprobs=True))
    ids = [one for item in whole.logprobs or [] for one in item.token_ids]
    assert ids[: len(streamed.logprobs)] == streamed.logprobs and len(ids) - len(streamed.logprobs) <= 1  # the end's


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"model": "nobody"}, 404, "nobody"),
        ({"p": 7}, 400, "p must be"),
        ({"citation_options": {"mode": "FAST"}}, 400, "citation_options"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]}, 400, "image"),
        ({"messages": [{"role": "tool", "content": "a"}]}, 400, "tool_call_id"),
    ],
)
def test_errors(client: cohere.ClientV2, fields: dict[str, Any], status: int, text: str) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": say("none"), **fields}
    for call in (client.chat, lambda **given: list(client.chat_stream(**given))):
        with pytest.raises(ApiError) as raised:
            call(**asked)
        body: Any = raised.value.body
        assert raised.value.status_code == status and text in body["message"] and body.keys() == {"id", "message"}


def test_vectors_are_another_servers(client: cohere.ClientV2) -> None:
    with pytest.raises(ApiError, match="generates text"):
        client.embed(model="tiny", texts=["a"], input_type="search_query", embedding_types=["float"])


async def test_async(scripted_server: Server) -> None:
    client = cohere.AsyncClientV2(api_key="-", base_url=scripted_server.base_url)

    async def one() -> str:
        streamed = Streamed([])
        async for event in client.chat_stream(model="tiny", messages=say("none")):
            streamed.add(event)
        return streamed.contents[0]["text"]

    assert await asyncio.gather(*(one() for _ in range(8))) == [QWEN.scripts["none"]] * 8


def test_a_stream_outlives_its_frontend(client: cohere.ClientV2, kill_frontends: Callable[[], None]) -> None:
    streamed = Streamed([])
    for number, event in enumerate(client.chat_stream(model="tiny", messages=say("long"))):
        streamed.add(event)
        if number in (5, 20):
            kill_frontends()
    assert [part["text"] for part in streamed.contents] == [LONG] and streamed.end.finish_reason == "COMPLETE"


# --- version 1 -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def older(scripted_server: Server) -> cohere.Client:
    return cohere.Client(api_key="-", base_url=scripted_server.base_url)


def test_version_1(older: cohere.Client) -> None:
    whole = older.chat(model="tiny", message="<none>", preamble="Be brief.")
    assert whole.text == QWEN.scripts["none"] and whole.finish_reason == "COMPLETE"
    assert [turn.role for turn in whole.chat_history or []] == ["USER", "CHATBOT"]
    *parts, end = older.chat_stream(model="tiny", message="<none>")
    assert "".join(part.text for part in parts if part.event_type == "text-generation") == whole.text
    assert end.event_type == "stream-end" and end.response.text == whole.text
    with pytest.raises(ApiError, match="connectors"):
        older.chat(model="tiny", message="<none>", connectors=[{"id": "web-search"}])  # type: ignore[list-item]


def test_tools_of_version_1(older: cohere.Client) -> None:
    """As its guides have it: the history of the answer goes into the next request, with the results."""
    where: Any = {"city": {"type": "str", "required": True}, "days": {"type": "int"}}
    tools: Any = [{"name": "weather", "description": "", "parameter_definitions": where}]
    *parts, end = older.chat_stream(model="tiny", message="<two>", tools=tools)
    calls = end.response.tool_calls if end.event_type == "stream-end" else None
    assert [call.parameters for call in calls or []] == [PARIS, ROME]
    chunks = [part.tool_call_delta for part in parts if part.event_type == "tool-calls-chunk"]
    first = "".join(chunk.parameters or "" for chunk in chunks if chunk.index == 0)
    assert json.loads(first) == PARIS
    results: Any = [{"call": call, "outputs": [{"temperature": 2}]} for call in calls or []]
    past = end.response.chat_history if end.event_type == "stream-end" else None
    last = older.chat(model="tiny", message="", chat_history=past, tools=tools, tool_results=results)
    assert [turn.role for turn in last.chat_history or []] == ["USER", "CHATBOT", "TOOL", "CHATBOT"]


def test_tokens_of_version_1(older: cohere.Client) -> None:
    told = older.tokenize(text="<none>", model="tiny", offline=False)
    assert told.tokens and len(told.token_strings) == len(told.tokens)
    assert older.detokenize(tokens=told.tokens, model="tiny", offline=False).text is not None


def test_version_1_outlives_its_frontend(older: cohere.Client, kill_frontends: Callable[[], None]) -> None:
    text, end = "", None
    for number, event in enumerate(older.chat_stream(model="tiny", message="<long>")):
        text += event.text if event.event_type == "text-generation" else ""
        end = event
        if number in (5, 20):
            kill_frontends()
    assert text == LONG and end is not None and end.event_type == "stream-end"
    assert end.response.text == LONG and end.finish_reason == "COMPLETE"
