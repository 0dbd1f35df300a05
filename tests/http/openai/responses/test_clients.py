"""The `openai` client and its helpers read what the writers write, and send what the adapter takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from actorserve.http.errors import ApiError
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.openai.responses.answers import ResponseAnswer
from actorserve.http.openai.responses.events import ResponseEvents
from actorserve.http.openai.responses.requests import echo, input_items, to_chat
from actorserve.http.openai.responses.schemas import ResponsesRequest
from actorserve.http.openai.responses.stored import StoredResponse, history
from actorserve.http.output.events import Arguments, CallStart, Content, Piece
from tests.http.openai.responses.scripted import (
    CALLED,
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

END = 1_700_000_009
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Weather(BaseModel):
    """Says the weather."""

    city: str


class Player:
    """The server side of the Responses API, with a script for a model."""

    def __init__(self) -> None:
        self.script = Script()
        self.kept: dict[str, StoredResponse] = {}
        self.answers: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = decode(ResponsesRequest, await request.read())
        earlier = history(self.kept.get, body.previous_response_id) if body.previous_response_id else []
        self.script.asked.append(to_chat(body, earlier))
        chat_request(self.script.asked[-1])
        answer = ResponseAnswer(f"{len(self.kept):024x}", body.model or "m", END - 9, echo(body, {}))
        whole = answer.whole(self.script.pieces, self.script.finish_reason, USAGE, END)
        self.kept[answer.id] = StoredResponse(whole, input_items(body, answer.key))
        if not body.stream:
            return web.json_response(whole)
        writer = ResponseEvents(answer)
        return await stream(
            request, self.script, writer, lambda: writer.last([], self.script.finish_reason, USAGE, END)
        )

    def says(self, *pieces: Piece, finish: str = "stop") -> None:
        self.script = Script(list(pieces), finish)

    @property
    def last(self) -> dict[str, Any]:
        """The whole answer that was made last."""
        return list(self.kept.values())[-1].response


PLAYER = Player()


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with serving("/v1/responses", PLAYER.answer, ApiError.body) as url:
        with OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as made:
            yield made


def same(response: Response, whole: dict[str, Any]) -> bool:
    """Is it this answer, but for what the client's helpers read in it; and is that of the client's types?"""
    Response.model_validate(whole)
    return bool(without(response.to_dict(), "parsed", "parsed_arguments") == whole)


def without(value: Any, *names: str) -> Any:
    """JSON without these fields."""
    if isinstance(value, dict):
        return {name: without(inner, *names) for name, inner in value.items() if name not in names}
    return [without(inner, *names) for inner in value] if isinstance(value, list) else value


def test_create(client: OpenAI) -> None:
    PLAYER.says(*THOUGHT, *SAID)
    response = client.responses.create(model="m", input="hi", instructions="Be brief.", temperature=0.5)
    assert response.output_text == "It is é\n2°." and same(response, PLAYER.last)
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.usage is not None and response.usage.output_tokens_details.reasoning_tokens == 3
    assert PLAYER.script.asked[0]["messages"][0] == {"role": "system", "content": "Be brief."}


def test_stream(client: OpenAI) -> None:
    PLAYER.says(*THOUGHT, *SAID, *TWICE)
    events = list(client.responses.create(model="m", input="hi", stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "It is é\n2°."
    assert events[-1].type == "response.completed" and same(events[-1].response, PLAYER.last)


def test_thinking_as_a_summary(client: OpenAI) -> None:
    """It is of the client's types, and is thinking again where the client sends it back."""
    PLAYER.says(*THOUGHT, *SAID)
    asked: dict[str, Any] = {"model": "m", "input": "hi", "reasoning": {"summary": "detailed"}}
    thought, said = client.responses.create(**asked).output
    assert thought.type == "reasoning" and [part.text for part in thought.summary] == ["Let me see."]
    assert not thought.content
    events = list(client.responses.create(**asked, stream=True))
    for event in events:
        EVENT.validate_python(event.to_dict(), strict=True)
    assert events[-1].type == "response.completed" and same(events[-1].response, PLAYER.last)
    client.responses.create(model="m", input=[thought.to_dict(), said.to_dict(), {"role": "user", "content": "b"}])
    assert PLAYER.script.asked[-1]["messages"][0]["reasoning_content"] == "Let me see."


@pytest.mark.parametrize("fields", [{}, {"text_format": Weather}])
def test_the_stream_helper(client: OpenAI, fields: dict[str, Any]) -> None:
    PLAYER.says(*THOUGHT, Content('{"city":'), Content('"Oslo"}'))
    with client.responses.stream(model="m", input="hi", **fields) as events:
        snapshots = [event.snapshot for event in events if event.type == "response.output_text.delta"]
        response = events.get_final_response()
    assert snapshots == ['{"city":', '{"city":"Oslo"}']
    assert response.output_parsed == (Weather(city="Oslo") if fields else None)
    assert same(response, PLAYER.last)
    form = PLAYER.script.asked[0].get("response_format")
    assert (form is None) == (not fields)
    if form is not None:
        assert form["json_schema"]["name"] == "Weather" and form["json_schema"]["strict"] is True


def test_parse(client: OpenAI) -> None:
    PLAYER.says(*THOUGHT, Content('{"city":"Rome"}'))
    response = client.responses.parse(model="m", input="hi", text_format=Weather)
    assert response.output_parsed == Weather(city="Rome")


def test_tool_calls_and_their_results(client: OpenAI) -> None:
    PLAYER.says(*THOUGHT, *TWICE, finish="tool_calls")
    tools = [openai.pydantic_function_tool(Weather)["function"]]
    tool: Any = {"type": "function", **tools[0], "name": "weather"}
    response = client.responses.create(model="m", input="hi", tools=[tool], tool_choice="required")
    calls = [item for item in response.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["city"] for call in calls] == ["Oslo", "Rome"]
    assert PLAYER.script.asked[0]["tools"][0]["function"]["name"] == "weather"

    results: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"{index}°"}
        for index, call in enumerate(calls)
    ]
    PLAYER.says(*SAID)
    by_items: list[Any] = [{"role": "user", "content": "hi"}, *response.output, *results]
    client.responses.create(model="m", input=by_items, tools=[tool])
    client.responses.create(model="m", input=results, previous_response_id=response.id, tools=[tool])
    first, second = (asked["messages"] for asked in PLAYER.script.asked)
    assert first == second
    assert [message["role"] for message in first] == ["user", "assistant", "tool", "tool"]
    assert first[1]["reasoning_content"] == "Let me see." and len(first[1]["tool_calls"]) == 2
    assert [message["tool_call_id"] for message in first[2:]] == [call.call_id for call in calls]


def test_the_stream_helper_with_a_tool(client: OpenAI) -> None:
    PLAYER.says(*CALLED, finish="tool_calls")
    tool: Any = {"type": "function", "name": "weather", "parameters": Weather.model_json_schema(), "strict": True}
    with client.responses.stream(model="m", input="hi", tools=[tool]) as events:
        snapshots = [event.snapshot for event in events if event.type == "response.function_call_arguments.delta"]
        response = events.get_final_response()
    assert snapshots == ['{"city":', '{"city":"Oslo"}']
    (call,) = response.output
    assert call.type == "function_call" and call.parsed_arguments == {"city": "Oslo"}


def test_an_answer_cut_short(client: OpenAI) -> None:
    PLAYER.says(CallStart(0, "weather"), Arguments(0, '{"ci'), finish="length")
    response = client.responses.create(model="m", input="hi")
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"  # type: ignore[union-attr]
    events = list(client.responses.create(model="m", input="hi", stream=True))
    assert events[-1].type == "response.incomplete" and same(events[-1].response, PLAYER.last)


def test_a_failure_in_the_middle(client: OpenAI) -> None:
    PLAYER.says(*SAID)
    PLAYER.script.fails_after = 1
    *_, last = client.responses.create(model="m", input="hi", stream=True)
    assert last.type == "response.failed" and last.response.error is not None
    assert last.response.error.code == "server_error" and last.response.status == "failed"


def test_what_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model="m", input="hi", tools=[{"type": "web_search"}])
    assert raised.value.param == "tools[0].type"
    with pytest.raises(openai.BadRequestError, match="not found") as raised:
        client.responses.create(model="m", input="hi", previous_response_id="resp_none")
    assert raised.value.code == "previous_response_not_found"


@settings(max_examples=60)
@given(pieces=piece_lists(), finish=st.sampled_from(["stop", "tool_calls"]))
def test_whatever_a_model_says_the_helper_puts_it_together(client: OpenAI, pieces: list[Piece], finish: str) -> None:
    PLAYER.says(*pieces, finish=finish)
    with client.responses.stream(model="m", input="hi") as events:
        assert same(events.get_final_response(), PLAYER.last)


@settings(max_examples=60)
@given(pieces=piece_lists(), finish=st.sampled_from(["stop", "length", "abort"]))
def test_all_events_are_of_the_clients_types(pieces: list[Piece], finish: str) -> None:
    writer = ResponseEvents(ResponseAnswer("k", "m", 1, echo(decode(ResponsesRequest, b'{"input":"a"}'), {})))
    data = writer.first() + writer.last(pieces, finish, USAGE, END)
    for event in events_of(data + writer.error(ApiError(500, "It broke."))):
        EVENT.validate_python(event)
