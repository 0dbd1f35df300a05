"""What of a long conversation is left out, and what the client is told of it."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from actorserve.http.anthropic.answers import MessageAnswer, count
from actorserve.http.anthropic.edits import CLEARED, Edits, edited
from actorserve.http.anthropic.events import MessageEvents
from actorserve.http.anthropic.requests import prompt_of
from actorserve.http.anthropic.schemas import CountRequest
from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.unsupported import read
from actorserve.http.openapi.dialects import InputTokens
from tests.http.serving import Served

USES, THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"
KEY = "0123456789abcdef01234567"
USAGE = {"prompt_tokens": 9, "completion_tokens": 2}


def use(number: int, name: str = "look") -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {"at": number}}


def result(number: int) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"result {number} " * 10}


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "s"}


def says(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


TEXT = {"type": "text", "text": "so"}
TALK = [
    {"role": "user", "content": "look around"},
    says("assistant", thought("first"), use(1)),
    says("user", result(1)),
    says("assistant", thought("second"), use(2, "read"), use(3)),
    says("user", result(2), result(3), {"type": "text", "text": "a reminder"}),
    says("assistant", thought("third"), TEXT),
    says("user", {"type": "text", "text": "and more"}),
    says("assistant", thought("fourth"), use(4)),
    says("user", result(4)),
]


def body(*edits: dict[str, Any], **fields: Any) -> CountRequest:
    given = {"messages": TALK, "context_management": {"edits": list(edits)}} | fields
    return read(CountRequest, json.dumps(given).encode())


async def size(request: CountRequest) -> int:
    """Stands for tokens: the characters that the model is told."""
    return len(json.dumps(prompt_of(request)["messages"]))


def edit(request: CountRequest) -> tuple[list[Any], Edits]:
    before = json.dumps(prompt_of(request)["messages"])
    shorter, edits = asyncio.run(edited(request, size))
    assert edits is not None
    assert json.dumps(prompt_of(request)["messages"]) == before, "the request itself stays"
    return prompt_of(shorter)["messages"], edits


def cleared(messages: list[Any]) -> list[str]:
    return [one["tool_call_id"] for one in messages if one["role"] == "tool" and one["content"] == CLEARED]


def thinking(messages: list[Any]) -> list[str]:
    return [one["reasoning_content"] for one in messages if "reasoning_content" in one]


def due(trigger: int = 0, **fields: Any) -> dict[str, Any]:
    return {"type": USES, "trigger": {"type": "input_tokens", "value": trigger}} | fields


def test_the_oldest_results_of_tools_go() -> None:
    messages, edits = edit(body(due(keep={"type": "tool_uses", "value": 1})))
    assert cleared(messages) == ["toolu_1", "toolu_2", "toolu_3"]
    assert [call["function"]["arguments"] for one in messages for call in one.get("tool_calls", [])] == [
        f'{{"at":{number}}}' for number in (1, 2, 3, 4)
    ]
    whole = asyncio.run(size(body()))
    (said,) = edits.applied
    assert said == {
        "type": USES,
        "cleared_tool_uses": 3,
        "cleared_input_tokens": whole - len(json.dumps(messages)),
    }
    assert edits.tokens == whole and edits.left == len(json.dumps(messages))


@pytest.mark.parametrize(("trigger", "prompts"), [(0, 2), (10**6, 1)])
async def test_each_prompt_is_counted_once(served: Served, trigger: int, prompts: int) -> None:
    asked = {"messages": TALK, "context_management": {"edits": [due(trigger)]}}
    answer = (await served.ask("POST", "/v1/messages/count_tokens", asked)).json
    assert answer == {"input_tokens": 2, "context_management": {"original_input_tokens": 2}}
    assert msgspec.to_builtins(msgspec.convert(answer, InputTokens)) == answer, "as /openapi.json says it"
    assert len(served.engine.asked) == prompts


def test_three_are_kept_where_nothing_is_said() -> None:
    assert cleared(edit(body(due()))[0]) == ["toolu_1"]
    assert cleared(edit(body(due(keep={"type": "tool_uses", "value": 0})))[0]) == [f"toolu_{n}" for n in (1, 2, 3, 4)]


def test_a_short_conversation_stays_as_it_is() -> None:
    for given in (
        {"type": USES},  # from 100,000 tokens on
        due(10**6),
        {"type": USES, "trigger": {"type": "tool_uses", "value": 4}},
        due(keep={"type": "tool_uses", "value": 4}),
        due(clear_at_least={"type": "input_tokens", "value": 10**6}),
        due(exclude_tools=["look"]),
    ):
        messages, edits = edit(body(given))
        assert messages == prompt_of(body())["messages"] and edits.applied == [], given


def test_a_number_of_tool_uses_may_be_the_trigger() -> None:
    given = {"type": USES, "trigger": {"type": "tool_uses", "value": 3}}
    assert cleared(edit(body(given))[0]) == ["toolu_1"]


def test_some_tools_are_left_out() -> None:
    given = due(keep={"type": "tool_uses", "value": 1}, exclude_tools=["read"])
    assert cleared(edit(body(given))[0]) == ["toolu_1", "toolu_3"]


@pytest.mark.parametrize(("inputs", "arguments"), [(True, ["{}", "{}"]), (["read"], ['{"at":1}', "{}"])])
def test_what_they_were_called_with_goes_if_it_is_to(inputs: object, arguments: list[str]) -> None:
    messages, _ = edit(body(due(keep={"type": "tool_uses", "value": 2}, clear_tool_inputs=inputs)))
    calls = [call["function"]["arguments"] for one in messages for call in one.get("tool_calls", [])]
    assert calls == [*arguments, '{"at":3}', '{"at":4}']


def test_a_call_that_waits_for_its_result_is_none_of_them() -> None:
    open_call = [*TALK, says("assistant", use(5)), says("user", TEXT)]
    messages, _ = edit(body(due(keep={"type": "tool_uses", "value": 4}), messages=open_call))
    assert cleared(messages) == []


def test_thinking_of_the_last_turn_stays() -> None:
    """What comes between results of tools is one turn."""
    messages, edits = edit(body({"type": THINKING}))
    assert thinking(messages) == ["fourth"]
    assert edits.applied[0]["cleared_thinking_turns"] == 1 and edits.applied[0]["cleared_input_tokens"] > 0
    two = {"type": THINKING, "keep": {"type": "thinking_turns", "value": 2}}
    assert thinking(edit(body(two))[0]) == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize("keep", ["all", {"type": "all"}])
def test_to_keep_all_thinking_asks_for_nothing(keep: object) -> None:
    messages, edits = edit(body({"type": THINKING, "keep": keep}))
    assert messages == prompt_of(body())["messages"] and edits.applied == [] and edits.tokens is None


def test_two_edits_are_told_in_their_order() -> None:
    messages, edits = edit(body({"type": THINKING}, due()))
    assert thinking(messages) == ["fourth"] and cleared(messages) == ["toolu_1"]
    assert [one["type"] for one in edits.applied] == [THINKING, USES]
    whole = asyncio.run(size(body()))
    assert sum(one["cleared_input_tokens"] for one in edits.applied) == whole - len(json.dumps(messages))


def test_what_is_wrong_later_in_a_message_keeps_its_name() -> None:
    """Blocks are numbered as the client has sent them."""
    talk = [*TALK[:5], says("assistant", thought("third"), {"type": "audio"}), *TALK[6:]]
    request = body({"type": THINKING}, messages=talk)
    with pytest.raises(ApiError) as raised:
        asyncio.run(edited(request, size))
    assert raised.value.param == "messages[5].content[1]"


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        ([{"type": "compact_20260112"}], "edits[0].type"),
        ([{"type": USES}, {"type": THINKING}], "edits[1].type"),
        ([{"type": USES}, {"type": USES}], "edits[1].type"),
        ([{"type": USES, "keep": "all"}], "edits[0].keep"),
        ([{"type": USES, "keep": {"type": "input_tokens", "value": 1}}], "edits[0].keep.type"),
        ([{"type": USES, "keep": {"type": "tool_uses", "value": -1}}], "edits[0].keep.value"),
        ([{"type": USES, "trigger": {"type": "turns", "value": 1}}], "edits[0].trigger.type"),
        ([{"type": USES, "trigger": {"type": "input_tokens"}}], "edits[0].trigger.value"),
        ([{"type": USES, "clear_at_least": {"type": "tool_uses", "value": 1}}], "edits[0].clear_at_least.type"),
        ([{"type": USES, "clear_tool_inputs": "a"}], "edits[0].clear_tool_inputs"),
        ([{"type": USES, "exclude_tools": "a"}], "edits[0].exclude_tools"),
        ([{"type": THINKING, "keep": {"type": "thinking_turns", "value": 0}}], "edits[0].keep"),
        ([{"type": THINKING, "keep": {"type": "tool_uses", "value": 1}}], "edits[0].keep.type"),
        ([{"type": THINKING, "keep": "some"}], "edits[0].keep"),
        (["a"], "edits[0]"),
    ],
)
def test_what_cannot_be_asked_is_named(edits: list[Any], field: str) -> None:
    with pytest.raises(ApiError) as raised:
        asyncio.run(edited(body(*edits), size))
    assert raised.value.status == 400 and raised.value.param == f"context_management.{field}"


def test_nothing_is_counted_or_told_where_nothing_is_asked_for() -> None:
    async def never(request: CountRequest) -> int:
        raise AssertionError(request)

    request = body(context_management=None)
    assert asyncio.run(edited(request, never)) == (request, None)
    assert asyncio.run(edited(body(), never))[1] == Edits([], None)


def test_messages_and_counts_tell_of_it() -> None:
    edits = Edits([{"type": THINKING, "cleared_thinking_turns": 1, "cleared_input_tokens": 5}], 20)
    answer = MessageAnswer(KEY, "m", edits=edits)
    told = {"applied_edits": edits.applied}
    assert answer.whole([], "stop", None, USAGE)["context_management"] == told
    ended = MessageEvents(answer, USAGE).last([], "stop", None, USAGE).decode()
    (data,) = [line[6:] for line in ended.split("\n") if line.startswith("data: ") and "message_delta" in line]
    assert json.loads(data)["context_management"] == told
    assert count(15, edits) == {"input_tokens": 15, "context_management": {"original_input_tokens": 20}}
    assert count(15, Edits([], None))["context_management"] == {"original_input_tokens": 15}
    assert "context_management" not in MessageAnswer(KEY, "m").whole([], "stop", None, USAGE)
    assert count(15, None) == {"input_tokens": 15}
