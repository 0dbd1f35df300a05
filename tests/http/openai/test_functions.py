"""Functions become tools: the request, what its messages tell, and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.prepare import ask_chat
from actorserve.http.openai.functions import with_tools
from actorserve.http.openai.schemas import ChatRequest, NamedFunction, NamedTool
from actorserve.http.openapi.answers import ChatCompletionChunk, CompletionChunk, Said
from actorserve.http.openapi.dialects import GeneratedPart
from actorserve.http.output.answer import PADDED
from tests.http.bodies import HI, body_of, refusal
from tests.http.fakes import rendered, say
from tests.http.serving import SETTINGS, Served

NOW = {"name": "now", "parameters": {"type": "object", "properties": {}}}
CALLED = {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}}
RESULT = {"role": "function", "name": "now", "content": "noon"}


def made(**fields: Any) -> ChatRequest:
    return with_tools(decode(ChatRequest, body_of(**{"messages": HI, **fields})))


def test_they_are_tools_of_which_one_is_called_at_a_time() -> None:
    body = made(functions=[NOW], function_call={"name": "now"})
    assert [json.loads(bytes(tool)) for tool in body.tools or []] == [{"type": "function", "function": NOW}]
    assert body.tool_choice == NamedTool(NamedFunction("now")) and body.parallel_tool_calls is False
    assert (
        made(functions=[NOW]).tool_choice is None and made(functions=[NOW], function_call="none").tool_choice == "none"
    )
    assert made(functions=[], function_call="auto").tools is None


def test_what_messages_tell_of_them() -> None:
    history = json.loads(bytes(made(messages=[*HI, CALLED, RESULT, CALLED, RESULT]).messages))
    assert history[0] == HI[0] and not any("function_call" in message for message in history)
    for asked, answered in ((1, 2), (3, 4)):
        (call,) = history[asked]["tool_calls"]
        assert call["type"] == "function" and call["function"] == CALLED["function_call"]
        assert history[answered] == {"role": "tool", "name": "now", "content": "noon", "tool_call_id": call["id"]}
    assert history[1]["tool_calls"] != history[3]["tool_calls"]
    as_they_came = body_of(messages=HI)
    assert bytes(with_tools(msgspec.json.decode(as_they_came, type=ChatRequest)).messages) in as_they_came


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"functions": [NOW, {"nam": "a"}]}, "functions[1].name"),
        ({"functions": [NOW], "function_call": {"name": "then"}}, "function_call"),
        ({"function_call": {"name": "now"}}, "function_call"),
        ({"functions": [NOW], "tools": [{"type": "function", "function": NOW}]}, "functions"),
        ({"messages": [{**CALLED, "function_call": 1}]}, "messages[0].function_call"),
    ],
)
def test_what_cannot_be(fields: dict[str, Any], param: str) -> None:
    body = decode(ChatRequest, body_of(**{"messages": HI, **fields}))
    error = refusal(ask_chat, body, replace(SETTINGS, tool_parser="hermes"), "id")
    assert (error.status, error.param) == (400, param) and param in error.message


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", ChatCompletionChunk),
        ("/v1/completions", CompletionChunk),
        ("/inference/v1/generate", GeneratedPart),
    ],
)
async def test_events_that_do_not_tell_how_long_their_text_is(served: Served, path: str, kind: type[Said]) -> None:
    """They are as /openapi.json says."""
    client = await served.client()
    options = {"include_obfuscation": True, "include_usage": True}
    prompt = {"messages": HI, "prompt": "hi", "token_ids": [1]}
    client.send("POST", path, {**prompt, "stream": True, "stream_options": options})
    job = await served.job()
    rendered(job)
    for number, text in enumerate(("a", "bcdefghijklmnop", "q"), 1):
        say(job, 0, text, number, Finish.STOP if number == 3 else 0)
    answer = await client.answer()
    *events, last = answer.events
    assert all(event["obfuscation"] for event in events) and "obfuscation" not in last
    assert [msgspec.to_builtins(msgspec.convert(event, kind)) for event in answer.events] == answer.events
    lines = [line for line in answer.body.splitlines() if b'"obfuscation"' in line]
    assert len({len(line) % PADDED for line in lines}) == 1 and len(lines) == len(events)
