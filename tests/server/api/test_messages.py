"""Anthropic's client against a running server: texts, thinking, tools, counting, errors; whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.api.test_tool_calls import PARIS, QWEN, ROME, TOOLS
from tests.support.scripted import LAST, scripted
from tests.support.server import Server

if TYPE_CHECKING:  # a second to import, which each process of a run would take that collects its tests
    from anthropic import Anthropic

FUNCTIONS: list[Any] = [
    {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    scripts = {**QWEN.scripts, "long": "".join(f"{number} bottles, " for number in range(300))}
    folder = scripted(
        Path(tmp_path_factory.mktemp("qwen")), scripts, template=f"{{% if false %}}{QWEN.mark}{{% endif %}}{LAST}"
    )
    options = ("--threads", "1", "--frontends", "2", "--max-restarts", "100", "--served-model-name", "claude")
    with Server(str(folder), *options) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Anthropic]:
    from anthropic import Anthropic

    with Anthropic(base_url=server.base_url, api_key="-", max_retries=0) as made:
        yield made


def ask(client: Anthropic, script: str, **fields: Any) -> Any:
    """The whole answer, which must be the stream's, too."""
    messages: list[Any] = [{"role": "user", "content": f"<{script}>"}]
    asked: dict[str, Any] = {"model": "claude", "messages": messages, "max_tokens": 1000, "tools": FUNCTIONS, **fields}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert [_plain(block) for block in streamed.content] == [_plain(block) for block in whole.content]
    assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    return whole


def _plain(block: Any) -> Any:
    return {name: value for name, value in block.to_dict().items() if name not in ("id", "signature")}


def test_a_text(client: Anthropic) -> None:
    answer = ask(client, "none")
    assert [_plain(block) for block in answer.content] == [
        {"type": "text", "text": QWEN.scripts["none"], "citations": []}
    ]
    assert answer.stop_reason == "end_turn" and answer.id.startswith("msg_") and answer.usage.input_tokens == 1


def test_calls(client: Anthropic) -> None:
    answer = ask(client, "two")
    text, *calls = answer.content
    assert text.text.strip() == "I look." and [call.input for call in calls] == [PARIS, ROME]
    assert answer.stop_reason == "tool_use" and len({call.id for call in calls}) == 2


def test_thinking_and_stop_sequences(client: Anthropic) -> None:
    answer = ask(client, "answer", stop_sequences=["STOP"], thinking={"type": "enabled", "budget_tokens": 500})
    thinking, text = answer.content
    assert thinking.thinking.strip() == "Hm, STOP" and thinking.signature and text.text == "The answer, no "
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "STOP")


def test_a_budget_beyond_the_answer_is_cut(client: Anthropic) -> None:
    """As clients send it that think between calls, too."""
    within, beyond = (
        ask(client, "answer", thinking={"type": "enabled", "budget_tokens": budget}) for budget in (999, 5000)
    )
    assert [_plain(block) for block in beyond.content] == [_plain(block) for block in within.content]
    assert [block.type for block in beyond.content] == ["thinking", "text"]


def test_the_limit(client: Anthropic) -> None:
    answer = client.messages.create(model="claude", max_tokens=3, messages=[{"role": "user", "content": "<none>"}])
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 3


def test_more_than_the_model_takes(client: Anthropic) -> None:
    from anthropic import BadRequestError

    """Some clients always ask for thousands of tokens; but a prompt that is too long is an error."""
    assert ask(client, "none", max_tokens=20_000).stop_reason == "end_turn"
    with pytest.raises(BadRequestError, match="prompt is too long"):
        ask(client, "><".join(["none"] * 3000))


def test_counting(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="claude", messages=[{"role": "user", "content": "<none>"}])
    assert counted.input_tokens == 1


def test_old_results_of_tools_are_left_out(demo_server: Server) -> None:
    """By a template that shows them."""
    from anthropic import Anthropic

    client = Anthropic(base_url=demo_server.base_url, api_key="-", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "look"}]
    for number in range(3):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "a long result " * 30}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    edit = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 2}}
    asked: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": messages,
        "betas": ["context-management-2025-06-27"],
        "context_management": {"edits": [edit | {"keep": {"type": "tool_uses", "value": 1}}]},
    }
    counted = client.beta.messages.count_tokens(**asked)
    answer = client.beta.messages.create(max_tokens=2, **asked)
    assert answer.context_management is not None and counted.context_management is not None
    (told,) = answer.context_management.applied_edits
    assert told.to_dict() == {
        "type": edit["type"],
        "cleared_tool_uses": 2,
        "cleared_input_tokens": counted.context_management.original_input_tokens - counted.input_tokens,
    }
    assert told.cleared_input_tokens > 0
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    ends = [
        event
        for event in client.beta.messages.create(max_tokens=2, stream=True, **asked)
        if event.type == "message_delta"
    ]
    assert [end.context_management for end in ends] == [answer.context_management]


def test_errors_are_anthropics(client: Anthropic) -> None:
    from anthropic import BadRequestError, NotFoundError

    with pytest.raises(NotFoundError) as missing:
        client.messages.create(model="nobody", max_tokens=1, messages=[{"role": "user", "content": "hi"}])
    body: Any = missing.value.body
    assert body["type"] == "error" and body["error"]["type"] == "not_found_error" and body["request_id"]
    with pytest.raises(BadRequestError, match="temperature"):
        client.messages.create(
            model="claude", max_tokens=1, messages=[{"role": "user", "content": "hi"}], extra_body={"temperature": 1.5}
        )


def test_a_stream_outlives_its_frontend(client: Anthropic, server: Server) -> None:
    messages: list[Any] = [{"role": "user", "content": "<long>"}]
    whole = client.messages.create(model="claude", max_tokens=2000, messages=messages)
    with client.messages.stream(model="claude", max_tokens=2000, messages=messages) as stream:
        for number, _ in enumerate(stream):
            if number in (5, 20):
                for name in ("frontend-0", "frontend-1"):
                    server.replace(name)
        final = stream.get_final_message()
    text: Any = whole.content[0]
    assert json.dumps(final.content[0].to_dict()) == json.dumps(text.to_dict()) and len(text.text) > 3000
