"""Conversations that are summed up: what the model is asked, what a client is given, and what it goes on with."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.http.app import make_app
from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job
from actorserve.http.openai.responses.answers import answer_to
from actorserve.http.openai.responses.compaction import INSTRUCTIONS, PREFACE, TRIGGER, threshold_of, with_trigger
from actorserve.http.openai.responses.encrypted import decrypted, encrypted
from actorserve.http.openai.responses.events import ResponseEvents
from actorserve.http.openai.responses.requests import input_items, to_chat
from actorserve.http.openai.responses.stored import StoredResponse, history
from tests.http.fakes import finish_all, rendered, say
from tests.http.openai.responses.scripted import KEY, SAID, THOUGHT, USAGE, events_of
from tests.http.openai.responses.test_requests import TIME, WEATHER, call, messages, request_of, result
from tests.http.serving import SETTINGS, Answer, Served

COMPACT = "/v1/responses/compact"
TRIGGERED = {"type": TRIGGER}
FIRST: dict[str, Any] = {"role": "user", "content": "Where is Oslo?"}
TALK = [FIRST, {"role": "assistant", "content": "In Norway."}, call("f", 1), result(1), {**FIRST, "content": "And?"}]
SUMMARY = {"type": "compaction", "id": "cmp_1", "encrypted_content": encrypted("compaction", "Oslo: in Norway.")}


def test_the_model_is_asked_for_a_summary_and_calls_nothing() -> None:
    plain = to_chat(request_of(input=TALK, tools=[WEATHER, TIME], instructions="Be brief."))
    fields: dict[str, Any] = {"stop": ["x"], "text": {"format": {"type": "json_object"}}}
    tools = [WEATHER, TIME, {"type": "mcp", "server_label": "demo"}]
    asked = to_chat(request_of(input=[*TALK, TRIGGERED], tools=tools, instructions="Be brief.", **fields))
    assert asked == {
        "messages": [*plain["messages"], {"role": "user", "content": INSTRUCTIONS}],
        "tools": plain["tools"],  # so that what is computed of the conversation is found again
        "tool_choice": "none",
    }


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([TRIGGERED], "input"),
        ([TRIGGERED, FIRST], "input[0].type"),
        ([FIRST, TRIGGERED, TRIGGERED], "input[1].type"),
        ([FIRST, {"type": "compaction", "encrypted_content": "gAAA"}], "input[1].encrypted_content"),
        ([FIRST, {"type": "compaction"}], "input[1].encrypted_content"),
    ],
)
def test_what_cannot_be_is_named(given: list[Any], param: str) -> None:
    with pytest.raises(ApiError) as raised:
        to_chat(request_of(input=given))
    assert (raised.value.status, raised.value.param) == (400, param)


def test_the_summary_stands_for_all_but_what_the_user_said() -> None:
    told = {"role": "user", "content": f"{PREFACE}\n\nOslo: in Norway."}
    users = [FIRST, {**FIRST, "content": "And?"}]
    assert messages([*TALK, SUMMARY, {**FIRST, "content": "Go on."}]) == [*users, told, {**FIRST, "content": "Go on."}]
    assert messages([*users, SUMMARY]) == [*users, told]  # as the client may leave out what it stands for
    assert messages([SUMMARY, call("f", 2), result(2)])[1]["tool_calls"]


def test_a_response_is_the_summary_whole_and_streamed() -> None:
    body = request_of(
        input=[*TALK, TRIGGERED],
        tool_choice={"type": "custom", "name": "c"},
        tools=[{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "regex", "definition": "a"}}],
    )
    answer = answer_to(body, KEY, "m", 1, {})
    whole = answer.whole(THOUGHT + SAID, "stop", USAGE, 2)
    (item,) = whole["output"]
    assert (item["type"], set(item)) == ("compaction", {"id", "type", "encrypted_content"})
    assert decrypted("compaction", item["encrypted_content"], "") == "It is é\n2°."
    for cut in range(len(SAID) + 1):
        first, second = ResponseEvents(answer), ResponseEvents(answer)
        data = first.first() + first.pieces(THOUGHT + SAID[:cut])
        second.sequence = first.sequence
        second.skip(THOUGHT + SAID[:cut])
        events = events_of(data + second.pieces(SAID[cut:]) + second.last([], "stop", USAGE, 2))
        kinds = ["created", "in_progress", "output_item.added", "output_item.done", "completed"]
        assert [event["type"] for event in events] == [f"response.{kind}" for kind in kinds]
        assert [event["sequence_number"] for event in events] == list(range(len(kinds)))
        assert events[2]["item"] == {**item, "encrypted_content": ""} and events[3]["item"] == item


def test_what_goes_on_from_it_does_not_ask_again() -> None:
    body = request_of(input=[*TALK, TRIGGERED], previous_response_id=None)
    ended = answer_to(body, KEY, "m", 1, {}).whole(SAID, "stop", USAGE, 2)
    kept = StoredResponse(ended, input_items(body, KEY))
    made = to_chat(request_of(), history(lambda _: kept, kept.id))["messages"]
    assert [message["content"].partition("\n")[0] for message in made[2:]] == [PREFACE, "hi"]


# --- before an answer ------------------------------------------------------------------------------------------------

RULE = {"type": "compaction", "compact_threshold": 1}  # of a fake engine's prompts each has two tokens


def test_of_several_thresholds_the_least_counts() -> None:
    rules = [{"type": "compaction"}, {"type": "compaction", "compact_threshold": 70}]
    given = request_of(input=TALK, context_management=rules)
    assert (threshold_of(given, 100), threshold_of(given, 50)) == (70, 40)
    beyond = request_of(input=TALK, context_management=[{"type": "compaction", "compact_threshold": 200_000}])
    assert threshold_of(beyond, 50) == 40, "a longer prompt has no room"
    assert threshold_of(request_of(input=TALK), 50) is None
    assert threshold_of(request_of(input=[*TALK, TRIGGERED], context_management=rules), 50) is None


async def answered(served: Served, *turns: tuple[str, int], **fields: Any) -> tuple[Answer, list[Job]]:
    """A response whose model says these, and their jobs."""
    body = {"input": TALK, "context_management": [RULE], **fields}
    asked, jobs = asyncio.create_task(served.ask("POST", "/v1/responses", body)), []
    for text, finish in turns:
        jobs.append(await served.job())
        rendered(jobs[-1])
        say(jobs[-1], 0, text, 3, finish)
    return await asked, jobs


def contents(job: Job) -> list[Any]:
    """Of the messages of its prompt."""
    return [message["content"] for message in json.loads(cast(Any, job.prompts[0]).messages)]


async def test_what_is_too_long_is_summed_up_before_it_is_answered(served: Served) -> None:
    fields: dict[str, Any] = {"tools": [TIME], "tool_choice": "none", "max_output_tokens": 7}
    answer, (summing, answering) = await answered(served, ("Oslo", Finish.STOP), ("yes", Finish.STOP), **fields)
    summary, said = answer.json["output"]
    assert (summary["type"], decrypted("compaction", summary["encrypted_content"], "")) == ("compaction", "Oslo")
    assert said["content"][0]["text"] == "yes" and answer.json["status"] == "completed"
    assert (answer.json["usage"]["input_tokens"], answer.json["usage"]["output_tokens"]) == (10, 6)
    assert [contents(job)[-1] for job in (summing, answering)] == [INSTRUCTIONS, f"{PREFACE}\n\nOslo"]
    assert [job.rendering["max_tokens"] for job in (summing, answering)] == [None, 7], "the limit is the answer's"
    behind = asyncio.create_task(
        served.ask("POST", "/v1/responses", {"input": "On.", "previous_response_id": answer.json["id"]})
    )
    finish_all(job := await served.job())
    assert (await behind).status == 200
    assert contents(job) == ["Where is Oslo?", "And?", f"{PREFACE}\n\nOslo", "yes", "On."]


async def test_what_is_short_is_answered(served: Served) -> None:
    answer, _ = await answered(served, ("yes", Finish.STOP), context_management=[{**RULE, "compact_threshold": 2}])
    assert [item["type"] for item in answer.json["output"]] == ["message"]


async def test_a_conversation_is_summed_up_without_input(served: Served) -> None:
    name = (await served.ask("POST", "/v1/conversations", {"items": [FIRST]})).json["id"]
    turns = ("Oslo", Finish.STOP), ("yes", Finish.STOP)
    answer, (summing, _) = await answered(served, *turns, input=None, conversation=name)
    assert [item["type"] for item in answer.json["output"]] == ["compaction", "message"]
    assert contents(summing) == ["Where is Oslo?", INSTRUCTIONS]
    empty = (await served.ask("POST", "/v1/conversations", {})).json["id"]
    refused, _ = await answered(served, input=[TRIGGERED], conversation=empty)
    assert (refused.status, refused.error["param"]) == (400, "input")


@pytest.mark.parametrize(("turn", "status"), [(("Os", Finish.LENGTH), 400), (("Os", Finish.ABORT), 503)])
async def test_behind_half_a_summary_nothing_is_answered(served: Served, turn: tuple[str, int], status: int) -> None:
    answer, _ = await answered(served, turn)
    assert answer.status == status


@pytest.mark.parametrize("sums_up", [True, False])
async def test_a_successor_reads_a_turn_as_what_it_was_begun(served: Served, sums_up: bool) -> None:
    """Whatever is too long by now, and though nobody says how long it is."""
    engine, rules = served.engine, [{**RULE, "compact_threshold": 1 if sums_up else 2}]
    engine.has = lambda refs: True  # type: ignore[method-assign]
    body = {"input": TALK, "context_management": rules, "background": True}
    name = (await served.ask("POST", "/v1/responses", body)).json["id"]
    await served.job()
    engine.tokenize = AsyncMock(side_effect=ApiError(503, "later"))  # type: ignore[method-assign]
    make_app(engine, SETTINGS)
    finish_all(await served.job(), "Oslo")
    if sums_up:
        finish_all(await served.job())
    while "in_progress" in (told := await served.ask("GET", f"/v1/responses/{name}")).json["status"]:
        await served.release()
    assert [item["type"] for item in told.json["output"]] == ["compaction"] * sums_up + ["message"]
    assert not engine.tokenize.await_count


# --- the path --------------------------------------------------------------------------------------------------------


async def compacted(served: Served, finish: int = Finish.STOP, text: str = "yes", **fields: Any) -> Answer:
    asked = asyncio.create_task(served.ask("POST", COMPACT, {"input": TALK, **fields}))
    job = await served.job()
    rendered(job)
    say(job, 0, text, 3, finish)
    return await asked


async def test_a_conversation_is_answered_with_what_it_goes_on_with(served: Served) -> None:
    answer = await compacted(served)
    told = answer.json
    assert answer.status == 200 and set(told) == {"id", "object", "created_at", "output", "usage"}
    *users, summary = told["output"]
    assert told["object"] == "response.compaction" and told["usage"]["output_tokens"] == 3
    assert [one["content"][0]["text"] for one in users] == ["Where is Oslo?", "And?"]
    assert all(one["status"] == "completed" and one["id"].startswith("in_") for one in users)
    assert decrypted("compaction", summary["encrypted_content"], "") == "yes"
    assert [message["content"] for message in messages(told["output"])][-1] == f"{PREFACE}\n\nyes"


async def test_what_was_kept_is_summed_up(served: Served) -> None:
    asked = asyncio.create_task(served.ask("POST", "/v1/responses", {"input": "Where?"}))
    finish_all(await served.job())
    name = (await asked).json["id"]
    told = (await compacted(served, input=None, previous_response_id=name)).json
    assert [one["type"] for one in told["output"]] == ["message", "compaction"]


async def test_a_text_is_summed_up(served: Served) -> None:
    first = await compacted(served, input="hi")
    assert first.json["output"][0]["content"][0]["text"] == "hi"


async def test_a_summary_that_is_not_whole_is_none(served: Served) -> None:
    for answer in (await compacted(served, Finish.LENGTH), await compacted(served, text="")):
        assert (answer.status, answer.error["param"]) == (400, "input")
        assert answer.error["code"] == "context_length_exceeded"
    aborted = await compacted(served, Finish.ABORT)
    assert aborted.status == 503 and "by an operator" in aborted.error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"background": True}, "background"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "unknown"}]}, "input[0].type"),
        ({"conversation": "c"}, "conversation"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_name(served: Served, fields: dict[str, Any], param: str) -> None:
    answer = await served.ask("POST", COMPACT, {"input": TALK, **fields})
    assert (answer.status, answer.error["param"]) == (400, param)


def test_a_trigger_of_the_clients_own_is_one() -> None:
    body = request_of(input=[*TALK, TRIGGERED])
    assert with_trigger(body).input == body.input == with_trigger(request_of(input=TALK)).input
