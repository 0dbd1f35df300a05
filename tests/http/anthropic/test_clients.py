"""The `anthropic` client and its helpers read what the writers write, and send what the adapter takes."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from actorserve.http.anthropic.answers import MessageAnswer
from actorserve.http.anthropic.errors import body_of
from actorserve.http.anthropic.events import MessageEvents
from actorserve.http.anthropic.requests import omits_thinking, to_chat
from actorserve.http.anthropic.schemas import MessagesRequest
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.output.events import Arguments, CallStart, Content, Piece
from tests.http.openai.responses.scripted import (
    SAID,
    THOUGHT,
    TWICE,
    USAGE,
    Script,
    events_of,
    piece_lists,
    serving,
    stream,
)

if TYPE_CHECKING:  # a second to import, which each process of a run would take that collects its tests
    from anthropic import Anthropic
    from anthropic.types import Message, ToolParam

AT_FIRST = USAGE | {"completion_tokens": 0, "completion_tokens_details": {"reasoning_tokens": 0}}
WEATHER: ToolParam = {"name": "weather", "input_schema": {"type": "object"}}


@functools.cache
def event_type() -> TypeAdapter[Any]:
    from anthropic.types import RawMessageStreamEvent

    return TypeAdapter(RawMessageStreamEvent)


class Weather(BaseModel):
    """Says the weather."""

    city: str


class Player:
    """The server side of the Messages API, with scripts for a model, the last of which stays."""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.asked: list[Any] = []
        self.last: dict[str, Any] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = decode(MessagesRequest, await request.read())
        self.asked.append(to_chat(body))
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        chat_request(self.asked[-1])
        answer = MessageAnswer(f"{len(self.asked):024x}", body.model or "m", omits_thinking(body))
        made = msgspec.json.encode(answer.whole(script.pieces, script.finish_reason, script.stop_reason, USAGE))
        self.last = json.loads(made)
        if not body.stream:
            return web.Response(body=made, content_type="application/json")
        writer = MessageEvents(answer, AT_FIRST)
        return await stream(
            request, script, writer, lambda: writer.last([], script.finish_reason, script.stop_reason, USAGE)
        )

    def says(self, *pieces: Piece, finish: str = "stop", stop: str | None = None) -> Script:
        self.scripts = [Script(list(pieces), finish, stop)]
        self.asked = []
        return self.scripts[0]


PLAYER = Player()


@pytest.fixture(scope="module")
def client() -> Iterator[Anthropic]:
    from anthropic import Anthropic

    with serving("/v1/messages", PLAYER.answer, body_of) as url:
        with Anthropic(base_url=url, api_key="k", max_retries=0) as made:
            yield made


def ask(client: Anthropic, **fields: Any) -> Message:
    from anthropic.types import Message

    made = client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}], **fields)
    assert isinstance(made, Message)
    return made


def same(message: Message, whole: dict[str, Any]) -> bool:
    """Is it this answer, but for what the client's helpers read in it; and is that of the client's types?"""
    type(message).model_validate(whole)
    said = message.to_dict(exclude_unset=True)
    content: Any = said["content"]
    for block in content:
        block.pop("parsed_output", None)
    return {name: value for name, value in said.items() if value is not None or name in whole} == whole


def test_all_fields_of_the_clients_types_are_there(client: Anthropic) -> None:
    """Not all clients take for null what is left out."""
    from anthropic.types import TextBlock

    PLAYER.says(*THOUGHT, *SAID, CallStart(0, "f"))
    message = ask(client)
    assert type(message).model_fields.keys() - PLAYER.last.keys() == {"diagnostics"}
    assert type(message.usage).model_fields.keys() - PLAYER.last["usage"].keys() == {"speed"}
    texts = [block for block in PLAYER.last["content"] if block["type"] == "text"]
    assert TextBlock.model_fields.keys() == texts[0].keys()


def test_create(client: Anthropic) -> None:
    PLAYER.says(*THOUGHT, *SAID, stop="END")
    message = ask(client, system="Be brief.", stop_sequences=["END"], thinking={"type": "enabled", "budget_tokens": 8})
    assert same(message, PLAYER.last) and [block.type for block in message.content] == ["thinking", "text"]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (7, 4)
    (asked,) = PLAYER.asked
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert asked["stop"] == ["END"] and asked["thinking_token_budget"] == 8


def test_stream(client: Anthropic) -> None:
    PLAYER.says(*THOUGHT, *SAID)
    said: Any = {"role": "user", "content": "hi"}
    events = list(client.messages.create(model="m", max_tokens=9, messages=[said], stream=True))
    assert [event.type for event in events][-2:] == ["message_delta", "message_stop"]


def test_the_stream_helper(client: Anthropic) -> None:
    PLAYER.says(*THOUGHT, *SAID, *TWICE, finish="tool_calls")
    said: Any = {"role": "user", "content": "hi"}
    with client.messages.stream(model="m", max_tokens=9, messages=[said], tools=[WEATHER]) as events:
        seen = list(events)
        message = events.get_final_message()
    assert "".join(event.text for event in seen if event.type == "text") == "It is é\n2°."
    assert [event.snapshot for event in seen if event.type == "thinking"] == ["Let me", "Let me see."]
    inputs = [event.snapshot for event in seen if event.type == "input_json"]
    assert inputs == [{}, {"city": "Oslo"}, {"city": "Rome"}]
    assert same(message, PLAYER.last) and message.stop_reason == "tool_use"


def test_parse(client: Anthropic) -> None:
    PLAYER.says(Content('{"city":"Rome"}'))
    said: Any = {"role": "user", "content": "hi"}
    parsed = client.messages.parse(model="m", max_tokens=9, messages=[said], output_format=Weather)
    assert parsed.parsed_output == Weather(city="Rome")
    schema = PLAYER.asked[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["city"]["type"] == "string"


def test_tools_and_their_results(client: Anthropic) -> None:
    PLAYER.says(*THOUGHT, *TWICE, finish="tool_calls")
    message = ask(client, tools=[WEATHER], tool_choice={"type": "any"})
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [call.input for call in calls] == [{"city": "Oslo"}, {"city": "Rome"}]
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "2°"}]} for call in calls
    ]
    PLAYER.says(*SAID)
    turns: list[Any] = [{"role": "user", "content": "hi"}, message.to_param(), {"role": "user", "content": results}]
    client.messages.create(model="m", max_tokens=9, messages=turns, tools=[WEATHER])
    asked = PLAYER.asked[0]["messages"]
    assert [turn["role"] for turn in asked] == ["user", "assistant", "tool", "tool"]
    assert asked[1]["reasoning_content"] == "Let me see."
    assert [turn["tool_call_id"] for turn in asked[2:]] == [call.id for call in calls]


def weather(city: str) -> str:
    """Says the weather.

    Args:
        city: Where.
    """
    return f"2° in {city}"


@pytest.mark.parametrize("streamed", [False, True])
def test_the_tool_runner(client: Anthropic, streamed: bool) -> None:
    from anthropic import beta_tool

    PLAYER.says()
    PLAYER.scripts = [Script([*THOUGHT, *TWICE], "tool_calls"), Script(list(SAID))]
    said: Any = {"role": "user", "content": "hi"}
    runner: Any = client.beta.messages.tool_runner(
        model="m", max_tokens=9, messages=[said], tools=[beta_tool(weather)], stream=streamed
    )
    message = runner.until_done()
    assert message.content[0].text == "It is é\n2°."
    results = [turn["content"] for turn in PLAYER.asked[1]["messages"] if turn["role"] == "tool"]
    assert results == ["2° in Oslo", "2° in Rome"]


def test_a_call_cut_short_is_read_alike_in_both_ways(client: Anthropic) -> None:
    PLAYER.says(CallStart(0, "weather"), Arguments(0, '{"city":"Oslo","n":[1,2],"x":"unfin'), finish="length")
    message = ask(client)
    assert message.stop_reason == "max_tokens"
    assert message.content[0].input == {"city": "Oslo", "n": [1, 2]}  # type: ignore[union-attr]
    said: Any = {"role": "user", "content": "hi"}
    with client.messages.stream(model="m", max_tokens=9, messages=[said]) as events:
        assert events.get_final_message().content[0].input == message.content[0].input  # type: ignore[union-attr]


def test_a_failure_in_the_middle(client: Anthropic) -> None:
    from anthropic import APIStatusError

    PLAYER.says(*SAID).fails_after = 1
    said: Any = {"role": "user", "content": "hi"}
    with pytest.raises(APIStatusError, match="could not compute") as raised:
        with client.messages.stream(model="m", max_tokens=9, messages=[said]) as events:
            events.get_final_message()
    assert raised.value.type == "api_error"


def test_what_is_refused(client: Anthropic) -> None:
    from anthropic import BadRequestError
    from anthropic.types import ErrorResponse

    PLAYER.says(*SAID)
    with pytest.raises(BadRequestError, match=r"tools\[0\]") as raised:
        ask(client, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert raised.value.type == "invalid_request_error"
    ErrorResponse.model_validate(raised.value.body)


@settings(max_examples=60)
@given(pieces=piece_lists(), finish=st.sampled_from(["stop", "tool_calls", "length"]))
def test_whatever_a_model_says_the_helper_puts_it_together(client: Anthropic, pieces: list[Piece], finish: str) -> None:
    PLAYER.says(*pieces, finish=finish)
    said: Any = {"role": "user", "content": "hi"}
    with client.messages.stream(model="m", max_tokens=9, messages=[said]) as events:
        message = events.get_final_message()
    assert same(message, PLAYER.last)


@settings(max_examples=60)
@given(pieces=piece_lists(), finish=st.sampled_from(["stop", "length", "abort"]))
def test_all_events_are_of_the_clients_types(pieces: list[Piece], finish: str) -> None:
    writer = MessageEvents(MessageAnswer("k", "m"), USAGE)
    for event in events_of(writer.first() + writer.last(pieces, finish, None, USAGE)):
        event_type().validate_python(event)
