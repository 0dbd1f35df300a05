"""Ollama's own client against a running server: whole, streamed, thinking, tools, errors, async; and a death."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import ollama
import pytest
import requests

from tests.server.api.test_tool_calls import PARIS, QWEN, ROME, TOOLS
from tests.server.dialects.conftest import LONG
from tests.support.server import Server

TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture(scope="module")
def client(scripted_server: Server) -> ollama.Client:
    return ollama.Client(host=scripted_server.base_url)


def say(script: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"<{script}>"}]


def ask(client: ollama.Client, script: str, **fields: Any) -> Any:
    """The whole answer, which must be the stream's, too."""
    whole = client.chat("tiny", messages=say(script), **fields)
    parts = list(client.chat("tiny", messages=say(script), stream=True, **fields))
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.message.content or "" for part in parts) == (whole.message.content or "")
    assert "".join(part.message.thinking or "" for part in parts) == (whole.message.thinking or "")
    calls = [call.function for part in parts for call in part.message.tool_calls or []]
    assert calls == [call.function for call in whole.message.tool_calls or []]
    last = parts[-1]
    assert (last.done_reason, last.eval_count) == (whole.done_reason, whole.eval_count)
    return whole


def test_a_text_with_counts_and_times(client: ollama.Client) -> None:
    answer = ask(client, "none")
    assert answer.message.content == QWEN.scripts["none"] and answer.message.role == "assistant"
    assert (answer.model, answer.done, answer.done_reason) == ("tiny", True, "stop")
    assert answer.prompt_eval_count == 1 and answer.eval_count > 5
    assert all(getattr(answer, name) > 0 for name in TIMES)
    assert answer.total_duration == sum(getattr(answer, name) for name in TIMES[1:])


def test_thinking(client: ollama.Client) -> None:
    answer = ask(client, "answer", think=True)
    assert answer.message.thinking.strip() == "Hm, STOP"
    assert answer.message.content == "The answer, no STOP more"


def test_calls_come_whole(client: ollama.Client) -> None:
    answer = ask(client, "two", tools=TOOLS)
    assert answer.message.content.strip() == "I look."
    assert [call.function.arguments for call in answer.message.tool_calls] == [PARIS, ROME]
    turns = [*say("two"), answer.message, *({"role": "tool", "tool_name": "weather", "content": "2°"} for _ in "ab")]
    assert client.chat("tiny", messages=[*turns, *say("none")], tools=TOOLS).message.content == QWEN.scripts["none"]


def test_options(client: ollama.Client) -> None:
    short = ask(client, "none", options={"num_predict": 3, "temperature": 0, "repeat_penalty": 1.0, "num_ctx": 4096})
    assert (short.done_reason, short.eval_count) == ("length", 3)
    stopped = ask(client, "none", options={"stop": ["needed"], "num_predict": -1, "seed": 5})
    assert stopped.message.content == "No <tool> is " and stopped.done_reason == "stop"
    assert ask(client, "none", options={"num_predict": 1_000_000}).done_reason == "stop"


def test_a_format_is_enforced(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    answer = client.chat("tiny", messages=say("none"), format=schema, options={"temperature": 0})
    assert json.loads(answer.message.content or "") == {"a": 1}


def test_logprobs(client: ollama.Client) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    whole = client.chat("tiny", messages=say("none"), **fields)
    parts = list(client.chat("tiny", messages=say("none"), stream=True, **fields))
    told = [one for part in parts for one in part.logprobs or []]
    assert [one.token for one in told] == [one.token for one in whole.logprobs or []]
    assert len(told) == whole.eval_count and all(len(one.top_logprobs or []) == 2 for one in told)


def test_generate(client: ollama.Client) -> None:
    whole = client.generate("tiny", "<answer>", think=True)
    assert whole.response == "The answer, no STOP more" and (whole.thinking or "").strip() == "Hm, STOP"
    parts = list(client.generate("tiny", "<none>", raw=True, stream=True))
    assert "".join(part.response or "" for part in parts) == QWEN.scripts["none"]
    assert parts[-1].done and (parts[-1].eval_count or 0) > 5


def test_a_prompt_stands_behind_what_was_said_before(client: ollama.Client) -> None:
    """The ids of the last line go with the next prompt, and are in its own last line again."""
    first = client.generate("tiny", "<none>")
    before = list(first.context or [])
    assert len(before) == (first.prompt_eval_count or 0) + (first.eval_count or 0)
    *parts, last = client.generate("tiny", "<answer>", context=before, stream=True)
    assert "".join(part.response or "" for part in parts) == "The answer, no STOP more"
    assert not any(part.context for part in parts) and last.prompt_eval_count == len(before) + 1
    after = list(last.context or [])
    assert after[: len(before)] == before and len(after) == len(before) + 1 + (last.eval_count or 0)
    assert client.generate("tiny", "<answer>", context=before).context == after
    assert client.generate("tiny", "<none>", raw=True).context is None


def test_nothing_is_asked(client: ollama.Client) -> None:
    """By which clients load a model."""
    answer = client.chat("tiny", messages=[], keep_alive="5m")
    assert answer.done_reason == "load" and client.generate("tiny").done_reason == "load"
    for nothing in (0, "0", "0s", "0.0m"):
        assert client.chat("tiny", messages=[], keep_alive=nothing).done_reason == "unload"
        assert client.generate("tiny", keep_alive=nothing).done_reason == "unload"
    assert client.ps().models, "it stays: it is the server's"


def test_the_model(client: ollama.Client) -> None:
    (tag,), (running,) = client.list().models, client.ps().models
    assert tag.model == running.model == "tiny" and tag.digest == running.digest
    assert (tag.size or 0) > 10_000 and tag.details is not None and tag.details.family == "llama"
    assert running.context_length == 2048
    shown = client.show("tiny:latest")
    assert shown.capabilities == ["completion", "tools", "insert", "thinking"] and QWEN.mark in (shown.template or "")
    assert (shown.modelinfo or {})["llama.context_length"] == 2048
    sizes = ("block_count", "attention.head_count", "attention.head_count_kv")
    assert [(shown.modelinfo or {})[f"llama.{size}"] for size in sizes] == [1, 2, 2], (
        "of which clients reckon KV memory"
    )
    assert (shown.modelinfo or {})["general.basename"] == "tiny"  # by which VS Code's picker names it


def test_version(scripted_server: Server) -> None:
    assert requests.get(f"{scripted_server.base_url}/api/version", timeout=60).json()["version"].count(".") == 2


@pytest.mark.parametrize("streamed", [False, True])
def test_errors(client: ollama.Client, streamed: bool) -> None:
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"model": "nobody"}, 404, "not found"),
        ({"options": {"mirostat": 3}}, 400, r"options\.mirostat"),
        ({"options": {"temperature": 9}}, 400, r"options\.temperature"),
        ({"options": {"repeat_penalty": 1.2, "repeat_last_n": -2}}, 400, r"options\.repeat_last_n"),
        ({"options": {"repeat_penalty": -1}}, 400, r"options\.repeat_penalty"),
        ({"options": {"repetition_penalty": -1}}, 400, r"options\.repetition_penalty"),
        ({"options": {"num_predict": "many"}}, 400, r"options\.num_predict"),
        (
            {"messages": [{"role": "user", "content": "a", "images": ["iVBORw0KGgo="]}]},
            400,
            r"^messages\[0\].images\[0\]",
        ),
        ({"format": {"type": "x"}}, 400, "^format: the grammar cannot be used"),
    ]
    for fields, status, text in wrong:
        with pytest.raises(ollama.ResponseError, match=text) as raised:
            list(client.chat(**{"model": "tiny", "messages": say("none"), "stream": streamed, **fields}))
        assert raised.value.status_code == status


def test_a_picture_of_one_text_is_named_so(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match=r"^images\[0\]: this model takes text only") as raised:
        client.generate("tiny", "a", images=["iVBORw0KGgo="])
    assert raised.value.status_code == 400


def test_an_unknown_format(scripted_server: Server) -> None:
    """Which the client itself would not send."""
    body = {"model": "tiny", "messages": say("none"), "format": "xml"}
    answer = requests.post(f"{scripted_server.base_url}/api/chat", json=body, timeout=60)
    assert answer.status_code == 400 and answer.json().keys() == {"error"} and "format" in answer.json()["error"]


def test_what_is_not_here(client: ollama.Client) -> None:
    for call in (
        lambda: client.pull("a"),
        lambda: client.delete("a"),
        lambda: client.copy("a", "b"),
        lambda: client.embed("tiny", "a"),
        lambda: client.generate("tiny", "a", context=[1 << 30]),
        lambda: client.generate("tiny", "a", raw=True, context=[1]),
        lambda: client.generate("tiny", "a", raw=True, system="b"),
    ):
        with pytest.raises(ollama.ResponseError) as raised:
            call()
        assert raised.value.status_code == 400


def test_what_is_served_need_not_be_fetched(client: ollama.Client, scripted_server: Server) -> None:
    for name in ("tiny", "tiny:latest"):
        assert client.pull(name).status == "success"
        assert [part.status for part in client.pull(name, stream=True)] == ["pulling manifest", "success"]
    for body, words in ({}, "model is missing"), ({"model": "a", "stream": False}, "/api/pull is not supported"):
        answer = requests.post(f"{scripted_server.base_url}/api/pull", json=body, timeout=60)
        assert answer.status_code == 400 and words in answer.json()["error"]


def test_errors_below_a_path_are_ollama_s(scripted_server: Server) -> None:
    answer = requests.post(f"{scripted_server.base_url}/api/blobs/sha256:12", data=b"a", timeout=60)
    assert answer.status_code == 400 and "/api/blobs/sha256:12 is not supported" in answer.json()["error"]


async def test_async(scripted_server: Server) -> None:
    client = ollama.AsyncClient(host=scripted_server.base_url)

    async def one() -> str:
        parts = await client.chat("tiny", messages=say("none"), stream=True)
        return "".join([part.message.content or "" async for part in parts])

    assert await asyncio.gather(*(one() for _ in range(8))) == [QWEN.scripts["none"]] * 8


def test_a_stream_outlives_its_frontend(client: ollama.Client, kill_frontends: Callable[[], None]) -> None:
    text = ""
    for number, part in enumerate(client.chat("tiny", messages=say("long"), stream=True)):
        text += part.message.content or ""
        if number in (5, 20):
            kill_frontends()
    assert text == LONG and part.done and part.done_reason == "stop"


def test_so_does_what_it_tells_of_all_tokens(client: ollama.Client, kill_frontends: Callable[[], None]) -> None:
    said = client.generate("tiny", "<long>").context
    parts = client.generate("tiny", "<long>", stream=True)
    before = [next(parts) for _ in range(5)]
    kill_frontends()
    assert [part.context for part in (*before, *parts)][-1] == said
