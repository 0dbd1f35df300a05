"""Tool calls and reasoning of models that write them in their own ways, over HTTP with the openai client.

The models are checkpoints that say what a script says (support/scripted.py); the server finds the parser by the
template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openai import OpenAI

from tests.support.scripted import LAST, scripted
from tests.support.server import Server

PARIS, ROME = {"city": "Paris", "days": 2}, {"city": 'Ro"me </tool_call> \\ 🦊', "days": -1}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def hermes(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


class Kind(NamedTuple):
    """A model: what stands in its template, and its scripts."""

    mark: str
    scripts: dict[str, str]


QWEN = Kind(
    "<tool_call> </think>",
    {
        "one": hermes("weather", PARIS),
        "two": f"I look.\n{hermes('weather', PARIS)}\n{hermes('weather', ROME)}",
        "none": "No <tool> is needed, 1 < 2.",
        "think": f"<think>\nShall I STOP? I call.\n</think>\n\nSo:\n{hermes('now', {})}",
        "answer": "<think>\nHm, STOP </think>\n\nThe answer, no STOP more",
        "broken": "<tool_call>\n{this is no call}\n</tool_call>",
    },
)
HARMONY = Kind(
    "<|channel|>",
    {
        "one": "<|channel|>analysis<|message|>Let me think, STOP<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.weather <|constrain|>json<|message|>{"city": "Paris", "days": 2}<|call|>',
        "answer": "<|channel|>analysis<|message|>Hm, STOP<|end|><|start|>assistant<|channel|>final<|message|>"
        "The answer, no STOP more<|return|>",
    },
)
CODER = Kind(
    "<tool_call><function=x><parameter=",
    {
        "one": "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>",
    },
)
KINDS = {"qwen": QWEN, "harmony": HARMONY, "coder": CODER}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, OpenAI]]:
    with ExitStack() as stack:
        made = {}
        for name, kind in KINDS.items():
            folder = scripted(
                Path(tmp_path_factory.mktemp(name)),
                kind.scripts,
                template=f"{{% if false %}}{kind.mark}{{% endif %}}{LAST}",
            )
            server = stack.enter_context(Server(str(folder), "--threads", "1", "--max-num-seqs", "8"))
            made[name] = stack.enter_context(OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0))
        yield made


def ask(client: OpenAI, script: str, **fields: Any) -> Any:
    """The whole answer, which must be that of the stream, too."""
    messages: list[Any] = [{"role": "user", "content": f"<{script}>"}]
    asked = {"model": client.models.list().data[0].id, "messages": messages, "temperature": 0, "tools": TOOLS, **fields}
    whole = client.chat.completions.create(**asked)
    if whole.choices[0].finish_reason == "length":  # the helper refuses these
        return whole
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        stream.until_done()
        streamed = stream.get_final_completion()
    for one, other in zip(whole.choices, streamed.choices, strict=True):
        assert one.finish_reason == other.finish_reason
        assert (one.message.content or "") == (other.message.content or "")
        assert getattr(one.message, "reasoning", None) == getattr(other.message, "reasoning", None)
        mine, theirs = one.message.tool_calls or [], other.message.tool_calls or []
        assert [(c.function.name, c.function.arguments) for c in mine] == [
            (c.function.name, c.function.arguments) for c in theirs
        ]
    assert whole.usage == streamed.usage
    return whole


def calls(answer: Any) -> list[tuple[str, Any]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in answer.choices[0].message.tool_calls or []]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call(clients: dict[str, OpenAI], kind: str) -> None:
    answer = ask(clients[kind], "one")
    assert calls(answer) == [("weather", PARIS)] and answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None


def test_several_calls_behind_a_text(clients: dict[str, OpenAI]) -> None:
    answer = ask(clients["qwen"], "two")
    assert calls(answer) == [("weather", PARIS), ("weather", ROME)]
    assert (answer.choices[0].message.content or "").strip() == "I look."
    assert len({call.id for call in answer.choices[0].message.tool_calls}) == 2


def test_one_call_at_a_time(clients: dict[str, OpenAI]) -> None:
    """What the model writes of others is left out; it is free to."""
    answer = ask(clients["qwen"], "two", parallel_tool_calls=False)
    assert calls(answer) == [("weather", PARIS)] and answer.choices[0].finish_reason == "tool_calls"


def test_functions_as_before_there_were_tools(clients: dict[str, OpenAI]) -> None:
    client, functions = clients["qwen"], [tool["function"] for tool in TOOLS]
    create: Any = client.chat.completions.create
    messages: list[Any] = [{"role": "user", "content": "<two>"}]
    asked: dict[str, Any] = {"model": client.models.list().data[0].id, "temperature": 0, "functions": functions}
    for choice, reason in ((None, "function_call"), ("auto", "function_call"), ({"name": "now"}, "stop")):
        more = {} if choice is None else {"function_call": choice}
        (one,) = create(messages=messages, **asked, **more).choices
        called = one.message.function_call
        assert called is not None and one.message.tool_calls is None and one.finish_reason == reason
        with create(messages=messages, stream=True, **asked, **more) as stream:
            chunks = [chunk.choices[0] for chunk in stream]
        parts = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call]
        assert "".join(part.name or "" for part in parts) == called.name
        assert "".join(part.arguments or "" for part in parts) == called.arguments
        assert chunks[-1].finish_reason == reason
        assert called.name == ("weather" if reason == "function_call" else "now")
    assert create(messages=messages, function_call="none", **asked).choices[0].message.content
    told = [{"role": "assistant", "function_call": {"name": "weather", "arguments": "{}"}}]
    told += [{"role": "function", "name": "weather", "content": "<none>"}]
    (one,) = create(messages=messages + told, **asked).choices
    assert one.message.content == QWEN.scripts["none"] and one.finish_reason == "stop"


@pytest.mark.parametrize("script", ["none", "broken"])
def test_what_is_no_call_is_text(clients: dict[str, OpenAI], script: str) -> None:
    answer = ask(clients["qwen"], script)
    assert answer.choices[0].message.content == QWEN.scripts[script]
    assert answer.choices[0].finish_reason == "stop" and not calls(answer)


def test_without_tools_nothing_is_parsed(clients: dict[str, OpenAI]) -> None:
    given: list[dict[str, Any]] = [{"tools": []}, {"tool_choice": "none"}]
    for fields in given:
        answer = ask(clients["qwen"], "one", **fields)
        assert answer.choices[0].message.content == QWEN.scripts["one"] and not calls(answer)


def test_a_call_that_the_limit_cuts(clients: dict[str, OpenAI]) -> None:
    whole = ask(clients["qwen"], "one").usage.completion_tokens
    for limit in range(1, whole - 1):
        answer = ask(clients["qwen"], "one", max_tokens=limit)
        choice = answer.choices[0]
        assert choice.finish_reason == "length" and "<tool_call>" not in (choice.message.content or "")
        for call in choice.message.tool_calls or []:
            assert json.dumps(PARIS).startswith(call.function.arguments)


def test_thinking_and_a_call(clients: dict[str, OpenAI]) -> None:
    answer = ask(clients["qwen"], "think", stop=["STOP"])
    message = answer.choices[0].message
    assert message.reasoning.strip() == "Shall I STOP? I call." == message.reasoning_content.strip()
    assert calls(answer) == [("now", {})] and (message.content or "").strip() == "So:"
    assert 3 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens


@pytest.mark.parametrize("kind", ["qwen", "harmony"])
def test_stop_strings_count_in_the_answer_only(clients: dict[str, OpenAI], kind: str) -> None:
    answer = ask(clients[kind], "answer", stop=["STOP"])
    message = answer.choices[0].message
    assert message.reasoning.strip() == "Hm, STOP" and message.content == "The answer, no "
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].stop_reason == "STOP"
    plain = ask(clients[kind], "answer")
    assert plain.choices[0].message.content == "The answer, no STOP more"


def test_reasoning_may_be_left_out(clients: dict[str, OpenAI]) -> None:
    answer = ask(clients["qwen"], "answer", extra_body={"include_reasoning": False})
    assert answer.choices[0].message.content == "The answer, no STOP more"
    assert getattr(answer.choices[0].message, "reasoning", None) is None


def test_special_tokens_are_markup_and_no_text(tmp_path: Path) -> None:
    """A model whose marks are special tokens, which are left out of texts otherwise."""
    text = 'Now:[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 2}'
    special = ["[TOOL_CALLS]", "[ARGS]"]
    folder = scripted(tmp_path, {"one": text}, special, f"{{% if false %}}{special[0]}{{% endif %}}{LAST}")
    with Server(str(folder), "--threads", "1") as server:
        with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as client:
            answer = ask(client, "one")
            assert calls(answer) == [("weather", PARIS)] and answer.choices[0].message.content == "Now:"
            plain = ask(client, "one", tools=[])
            assert plain.choices[0].message.content == text.replace("[TOOL_CALLS]", "").replace("[ARGS]", "")


def test_thinking_and_calls_in_special_tokens(tmp_path: Path) -> None:
    """Gemma 4's; thinking begins with two."""
    special = ["<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>"]
    text = '<|channel>thought\nHm.<channel|>Now:<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>'
    mark = f"{{% if false %}}{''.join(special)}{{% endif %}}{LAST}"
    with Server(str(scripted(tmp_path, {"one": text}, special, mark)), "--threads", "1") as server:
        with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as client:
            answer = ask(client, "one")
            message = answer.choices[0].message
            assert calls(answer) == [("weather", PARIS)] and message.content == "Now:"
            assert message.reasoning.strip() == "Hm."


def test_a_model_whose_way_is_not_known(tmp_path: Path) -> None:
    """Its tool calls are looked for in the commonest form, unless the operator says that there are none."""
    folder = scripted(tmp_path, QWEN.scripts)
    with Server(str(folder), "--threads", "1", "--tool-call-parser", "none") as server:
        with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as client:
            with pytest.raises(Exception, match="--tool-call-parser"):
                ask(client, "one")
    with Server(str(folder), "--threads", "1", "--reasoning-parser", "qwen3") as server:
        with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as client:
            assert calls(ask(client, "think")) == [("now", {})]
