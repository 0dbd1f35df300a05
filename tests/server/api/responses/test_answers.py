"""OpenAI's Responses API with its client against a running server, whose frontends die meanwhile."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.server.api.test_tool_calls import PARIS, QWEN, ROME
from tests.support.server import Server

from .scene import BOTTLES, FUNCTIONS, PATCH, ask, kill_frontends, wait_for


def test_a_text(client: OpenAI) -> None:
    answer = ask(client, "none")
    assert answer.output_text == QWEN.scripts["none"] and answer.status == "completed"
    assert answer.usage.input_tokens == 1 and answer.id.startswith("resp_")


def test_calls_and_thinking(client: OpenAI) -> None:
    calls = [item for item in ask(client, "two").output if item.type == "function_call"]
    assert [call.name for call in calls] == ["weather"] * 2
    assert [json.loads(call.arguments) for call in calls] == [PARIS, ROME]
    answer = ask(client, "think")
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    assert answer.usage.output_tokens_details.reasoning_tokens > 3


def test_thinking_that_is_not_stored_comes_back_with_the_next_turn(client: OpenAI, server: Server) -> None:
    """As Codex sends it, without what it says in clear, to whichever frontend there is by now."""
    fields: dict[str, Any] = {"model": "gpt", "store": False, "include": ["reasoning.encrypted_content"]}
    thought, said = client.responses.create(input="<ponder>", **fields).output
    sent: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
    kill_frontends(server)
    turns: list[Any] = [{"role": "user", "content": "<ponder>"}, sent, said.to_dict()]
    recall: Any = {"role": "user", "content": "<recall>"}
    assert client.responses.create(input=[*turns, recall], **fields).output_text == "It was known."
    del turns[1]
    assert client.responses.create(input=[*turns, recall], **fields).output_text != "It was known."
    foreign: list[Any] = [{**sent, "encrypted_content": "gAAAAABo"}, recall]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input=foreign, **fields)
    assert refused.value.param == "input[0].encrypted_content" and refused.value.code == "invalid_encrypted_content"


def test_a_tool_in_a_namespace_is_called_by_both_its_names(client: OpenAI, server: Server) -> None:
    """As Codex offers what its MCP servers have, beside tools of its own host."""
    tools: list[Any] = [
        {"type": "namespace", "name": "mcp__meteo", "description": "The weather.", "tools": FUNCTIONS},
        {"type": "web_search"},
        {"type": "function", "name": "mcp__other", "parameters": {}, "strict": False},
    ]
    answer = ask(client, "in a namespace", tools=tools)
    (call,) = answer.output
    assert (call.type, call.namespace, call.name) == ("function_call", "mcp__meteo", "weather")
    assert json.loads(call.arguments) == PARIS
    begun = client.responses.create(model="gpt", input="<in a namespace>", tools=tools, background=True)
    kill_frontends(server)
    (again,) = wait_for(client, begun.id).output
    assert (again.namespace, again.name) == ("mcp__meteo", "weather")
    result: Any = {"type": "function_call_output", "call_id": again.call_id, "output": "rain"}
    behind = client.responses.create(model="gpt", input=[result], previous_response_id=begun.id, tools=tools)
    assert behind.status == "completed"


def test_a_custom_tool_is_called_with_a_text(client: OpenAI, server: Server) -> None:
    """As Codex offers its patches; what a grammar makes of this model's words is not its script."""
    patch: Any = {"type": "custom", "name": "patch", "description": "Changes files."}
    (call,) = ask(client, "custom", tools=[patch, *FUNCTIONS]).output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", PATCH)
    begun = client.responses.create(model="gpt", input="<custom>", tools=[patch], background=True)
    kill_frontends(server)
    (again,) = wait_for(client, begun.id).output
    assert again.input == PATCH
    result: Any = {"type": "custom_tool_call_output", "call_id": again.call_id, "output": "done"}
    behind = client.responses.create(model="gpt", input=[result], previous_response_id=begun.id, tools=[patch])
    assert behind.status == "completed"


def test_the_limit(client: OpenAI) -> None:
    answer = client.responses.create(model="gpt", input="<none>", max_output_tokens=4)
    assert answer.status == "incomplete" and answer.incomplete_details
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_what_was_cached_does_not_tell_of_other_keys(client: OpenAI) -> None:
    def cached(asking: OpenAI, **more: Any) -> int:
        answer = asking.completions.create(model="gpt", prompt="one two " * 100, max_tokens=1, extra_body=more)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    with OpenAI(base_url=client.base_url, api_key="other", max_retries=0) as other:
        assert [cached(client) > 60, cached(client) > 60, cached(other) > 0, cached(other) > 60] == [0, 1, 0, 1]
        assert cached(client, cache_salt="a") == 0 and cached(client, cache_salt="a") > 60


def test_what_is_too_long_is_refused_by_its_name_here(client: OpenAI) -> None:
    attempts: list[Any] = [client.responses.create, client.responses.input_tokens.count]
    for attempt in attempts:
        with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
            attempt(model="gpt", input="word " * 200_000, truncation="auto")
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


def test_how_many_tokens_there_are(client: OpenAI) -> None:
    made = client.responses.create(model="gpt", input="<none>")
    counted = client.responses.input_tokens.count(model="gpt", input="<none>", previous_response_id=made.id)
    assert made.usage is not None and counted.object == "response.input_tokens"
    assert counted.input_tokens == made.usage.input_tokens == 1


LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


@pytest.mark.parametrize("script", ["none", "two", "think", "answer"])
def test_logprobs(client: OpenAI, script: str) -> None:
    whole = ask(client, script, **LOGPROBS)
    (said,) = [item.content[0] for item in whole.output if item.type == "message"]
    tokens = "".join(entry.token for entry in said.logprobs).strip()  # the last one may go on with markup
    assert tokens.startswith(said.text.strip()) and len(tokens) < len(said.text) + 4
    assert all(len(entry.top_logprobs) == 2 for entry in said.logprobs)
    streamed = list(client.responses.create(model="gpt", input=f"<{script}>", tools=FUNCTIONS, stream=True, **LOGPROBS))
    deltas = [event for event in streamed if event.type == "response.output_text.delta"]
    told = [entry.logprob for event in deltas for entry in event.logprobs]
    assert told == [entry.logprob for entry in said.logprobs]


def test_a_stream_outlives_its_frontend(client: OpenAI, server: Server) -> None:
    with client.responses.stream(model="gpt", input="<long>", **LOGPROBS) as stream:
        numbers = []
        for event in stream:
            numbers.append(event.sequence_number)
            if len(numbers) in (20, 60):
                kill_frontends(server)
        final = stream.get_final_response()
    assert final.output_text == BOTTLES and numbers == list(range(len(numbers)))
    said: Any = final.output[0]
    assert "".join(entry.token for entry in said.content[0].logprobs) == BOTTLES
    assert client.responses.retrieve(final.id).output_text == BOTTLES


def test_what_the_model_read_and_wrote_outlives_a_frontend(client: OpenAI, server: Server) -> None:
    """Its markup, too; the prompt is the whole one."""
    asked: dict[str, Any] = {"model": "gpt", "tools": FUNCTIONS, "extra_body": {"enable_response_messages": True}}
    whole = client.responses.create(input="<think>", **asked).to_dict()
    (read,), (wrote,) = whole["input_messages"], whole["output_messages"]
    assert read["message"].endswith("<think>") and len(read["tokens"]) == whole["usage"]["input_tokens"]
    assert wrote["message"].startswith("<think>") and "<tool_call>" in wrote["message"]
    long: Any = client.responses.create(input="<long>", **asked).to_dict()
    with client.responses.stream(input="<long>", **asked) as stream:
        for number, _ in enumerate(stream):
            if number == 50:
                kill_frontends(server)
        final: Any = stream.get_final_response().to_dict()
    assert final["output_messages"] == long["output_messages"] and final["input_messages"] == long["input_messages"]
    assert long["output_messages"][0]["message"] == BOTTLES
