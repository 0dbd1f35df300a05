"""Responses that are kept, or made in the background, with OpenAI's client; frontends die meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.server.api.test_tool_calls import QWEN
from tests.support.rolling import restart
from tests.support.selection import slow
from tests.support.server import Server

from .scene import BOTTLES, FUNCTIONS, kill_frontends, wait_for


def test_what_is_kept_is_found_by_every_frontend_and_its_successor(client: OpenAI, server: Server) -> None:
    made = [client.responses.create(model="gpt", input="<none>") for _ in range(6)]
    streamed = client.responses.create(model="gpt", input="<none>", stream=True)
    ids = [one.id for one in made] + [event.response.id for event in streamed if event.type == "response.completed"]
    for _ in range(2):
        for name in ids:
            for _ in range(3):  # on connections of both
                with OpenAI(base_url=client.base_url, api_key="-", max_retries=0) as other:
                    found = other.responses.retrieve(name)
                    assert found.id == name and found.output_text == QWEN.scripts["none"]
        items = client.responses.input_items.list(ids[0])
        assert [item.type for item in items.data] == ["message"]
        kill_frontends(server)
    unkept = client.responses.create(model="gpt", input="<none>", store=False)
    for name in (unkept.id, "resp_" + "0" * 26, "resp_ff" + "0" * 24, "nothing"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(name)


def test_a_conversation_goes_on_from_what_is_kept(client: OpenAI) -> None:
    """The script's template shows the last message only; tokens say that the others came before it."""
    first = client.responses.create(model="gpt", input="<none>")
    for _ in range(4):
        second = client.responses.create(model="gpt", input="<answer>", previous_response_id=first.id)
        assert second.output_text == "The answer, no STOP more" and second.previous_response_id == first.id
    with pytest.raises(openai.BadRequestError, match="not found"):
        client.responses.create(model="gpt", input="<none>", previous_response_id="resp_" + "0" * 26)


def test_items_may_be_named_by_their_ids(client: OpenAI) -> None:
    """Whichever frontend is asked: the one that keeps them answers."""
    first = client.responses.create(model="gpt", input="<two>", tools=FUNCTIONS)
    calls = [item for item in first.output if item.type == "function_call"]
    named: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
    named += [{"type": "function_call_output", "call_id": call.call_id, "output": "<none>"} for call in calls]
    for _ in range(4):
        with OpenAI(base_url=client.base_url, api_key="-", max_retries=0) as other:
            second = other.responses.create(model="gpt", input=named, tools=FUNCTIONS)
            assert second.output_text == QWEN.scripts["none"]
            kept = other.responses.input_items.list(second.id, order="asc").data
            assert [item.id for item in kept][: len(first.output)] == [item.id for item in first.output]
            counted = other.responses.input_tokens.count(model="gpt", input=named, tools=FUNCTIONS)
            assert counted.input_tokens == second.usage.input_tokens if second.usage else False
    with pytest.raises(openai.NotFoundError, match=r"input\[0\].id"):
        client.responses.create(model="gpt", input=[{"type": "item_reference", "id": "msg_" + "0" * 30}])


def _is_not_there(stranger: OpenAI, name: str) -> None:
    """Whatever this client tries with the id."""
    responses: Any = stranger.responses
    for attempt in (responses.retrieve, responses.cancel, responses.delete, responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match="not found"):
            attempt(name)
    for go_on in (responses.create, responses.input_tokens.count):
        with pytest.raises(openai.BadRequestError, match="not found"):
            go_on(model="gpt", input="<none>", previous_response_id=name)


def test_another_key_does_not_find_them(client: OpenAI, server: Server, keys_file: Path) -> None:
    kept = client.responses.create(model="gpt", input="<none>")
    running = client.responses.create(model="gpt", input="<long>", background=True)
    with OpenAI(base_url=client.base_url, api_key="other", max_retries=0) as stranger:
        for change in ("nothing", "deaths", "keys"):
            if change == "deaths":
                kill_frontends(server)
            if change == "keys":
                keys_file.write_text("another\nother\n-\n")
                restart(server, "frontend")
            for name in (kept.id, running.id):
                _is_not_there(stranger, name)
            assert client.responses.retrieve(kept.id).output_text == QWEN.scripts["none"]
        assert wait_for(client, running.id).output_text == BOTTLES
        _is_not_there(stranger, running.id)
        client.responses.delete(kept.id)
        mine = stranger.responses.create(model="gpt", input="<none>")
    _is_not_there(client, mine.id)


@pytest.mark.parametrize("die", [*slow(False), True])
def test_in_the_background(client: OpenAI, server: Server, die: bool) -> None:
    begun = client.responses.create(model="gpt", input="<long>", background=True)
    assert begun.status == "queued"
    if die:
        kill_frontends(server)
    found = wait_for(client, begun.id)
    assert found.status == "completed" and found.output_text == BOTTLES
    events = list(client.responses.retrieve(begun.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    for after in (0, 7, len(events) // 2, len(events) - 2):
        again = list(client.responses.retrieve(begun.id, stream=True, starting_after=after))
        assert [event.to_dict() for event in again[:-1]] == [event.to_dict() for event in events[after + 1 : -1]]


@pytest.mark.parametrize("die", [False, True])
def test_events_of_one_that_runs(client: OpenAI, server: Server, die: bool) -> None:
    stream = client.responses.create(model="gpt", input="<long>", background=True, stream=True)
    seen = []
    for event in stream:
        seen.append(event)
        if len(seen) == 5 and die:
            kill_frontends(server)
        if len(seen) == 20:
            break
    stream.close()
    created: Any = seen[0]
    name = created.response.id
    later = iter(client.responses.retrieve(name, stream=True, starting_after=seen[-1].sequence_number))
    rest = [next(later)]
    if die:
        kill_frontends(server)
    rest += later
    assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen) + len(rest)))
    text = "".join(event.delta for event in [*seen, *rest] if event.type == "response.output_text.delta")
    assert text == BOTTLES and rest[-1].type == "response.completed"


def test_cancelling(client: OpenAI) -> None:
    begun = client.responses.create(model="gpt", input="<long>", background=True)
    cancelled = client.responses.cancel(begun.id)
    assert cancelled.status in ("cancelled", "completed")
    assert client.responses.retrieve(begun.id).status == cancelled.status
    kept = client.responses.create(model="gpt", input="<none>")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(kept.id)


def test_deleting(client: OpenAI, server: Server) -> None:
    kept = client.responses.create(model="gpt", input="<none>")
    running = client.responses.create(model="gpt", input="<long>", background=True)
    for name in (kept.id, running.id):
        client.responses.delete(name)
    for _ in range(2):
        for name in (kept.id, running.id):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(name)
            with pytest.raises(openai.NotFoundError):
                client.responses.delete(name)
        kill_frontends(server)
