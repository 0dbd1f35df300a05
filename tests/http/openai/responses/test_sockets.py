"""Responses over a WebSocket before an engine that the test plays: what each message does, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.http.errors import bad_request
from actorserve.http.openai.responses.socket import MOST_UNKEPT
from tests.http.fakes import BrokenParser, finish_all, rendered, say
from tests.http.serving import Served, serving

from .sockets import PATH, answered, connected, prompt_of


async def test_a_response_from_its_first_event_to_its_last(served: Served) -> None:
    async with connected(served) as socket:
        await socket.create(input="hi", metadata={"a": "b"}, stream_id="one")
        job = await served.job()
        rendered(job)
        say(job, 0, "hel")
        opened = await socket.until("response.output_text.delta")
        say(job, 0, "lo", 2, Finish.STOP)
        events = [*opened, *await socket.end()]
        assert [event["type"].removeprefix("response.") for event in events] == [
            *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
            *("output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed"),
        ]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert {event["stream_id"] for event in events} == {"one"}
        done = events[-1]["response"]
        assert done["metadata"] == {"a": "b"} and done["output"][0]["content"][0]["text"] == "hello"
        assert await served.release() is job
        kept = await served.ask("GET", f"{PATH}/{done['id']}")
        assert kept.json == done
        assert (served.engine.sockets, served.engine.responses_begun) == (1, 1)


@pytest.mark.parametrize("store", [True, False])
async def test_one_goes_on_from_another(served: Served, store: bool) -> None:
    async with connected(served) as socket:
        first = await answered(served, socket, input="first", store=store)
        second = await answered(served, socket, input="second", store=store, previous_response_id=first["id"])
        await socket.create(input="third", store=store, previous_response_id=second["id"])
        prompt = await prompt_of(served)
        assert [prompt.index(word) for word in ('"first"', '"second"', '"third"')] == sorted(
            prompt.index(word) for word in ('"first"', '"second"', '"third"')
        )
        assert (await socket.end())[-1]["response"]["previous_response_id"] == second["id"]
        assert (await served.ask("GET", f"{PATH}/{second['id']}")).status == (200 if store else 404)
    async with connected(served) as other:
        if not store:
            error = await other.refused(previous_response_id=second["id"])
            assert error["status"] == 400 and error["error"]["code"] == "previous_response_not_found"
            assert error["error"]["param"] == "previous_response_id"


async def test_messages_are_answered_one_after_the_other(served: Served) -> None:
    async with connected(served) as socket:
        for number in range(3):
            await socket.create(input=f"number {number}", stream_id=str(number))
        await socket.create(input="x", temperature=9)
        for number in range(3):
            assert f"number {number}" in await prompt_of(served)
            events = await socket.end()
            assert {event["stream_id"] for event in events} == {str(number)}
        assert (await socket.next())["error"]["param"] == "temperature"


async def test_a_prompt_is_prepared(served: Served) -> None:
    async with connected(served) as socket:
        await socket.create(instructions="be short", input=[], generate=False)
        assert '"be short"' in await prompt_of(served)
        events = await socket.end()
        assert [event["type"] for event in events] == [
            *("response.created", "response.in_progress", "response.completed"),
        ]
        prepared = events[-1]["response"]
        assert prepared["output"] == [] and prepared["usage"]["output_tokens"] == 0
        assert prepared["max_output_tokens"] is None
        await socket.create(input="go", previous_response_id=prepared["id"])
        prompt = await prompt_of(served)
        assert '"go"' in prompt and '"?"' not in prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"type": "response.cancel"}, "type"),
        ({"background": True}, "background"),
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"model": "other"}, "model"),
        ({"stream_id": "x" * 65}, "stream_id"),
        ({"messages": ["hi"]}, "messages"),
        ({"generate": 1}, "generate"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_name(served: Served, fields: dict[str, Any], param: str) -> None:
    async with connected(served) as socket:
        await socket.socket.send_json({"type": "response.create", "input": "hi"} | fields)
        event = await socket.next()
        assert event["type"] == "error" and event["status"] in (400, 404), event
        assert event["error"]["param"] == param and event["error"]["type"] == "invalid_request_error"
        await answered(served, socket)


async def test_what_fails_before_its_first_event_and_behind_it(served: Served) -> None:
    async with connected(served) as socket:
        await socket.create(input="long", stream_id="a")
        (await served.job()).fail(bad_request("messages: this is too long.", "messages"))
        error = await socket.next()
        assert (error["type"], error["stream_id"], error["status"]) == ("error", "a", 400)
        await socket.create(input="hi")
        job = await served.job()
        rendered(job)
        say(job, 0, "half")
        await socket.until("response.output_text.delta")
        say(job, 0, "x", 1, Finish.ERROR)
        failed = (await socket.end())[-1]
        assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
        served.engine.refusal = bad_request("no", "model")
        assert (await socket.refused())["error"]["param"] == "model"
        served.engine.refusal = None
        await answered(served, socket)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_plugin_that_raises_ends_the_response_and_not_the_connection(
    served: Served, told: bool, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(served) as socket:
        await socket.create(input="hi")
        job = await served.job()
        rendered(job)
        if told:
            say(job, 0, "half")
            await socket.until("response.output_text.delta")
        job.choices[0].parser = BrokenParser(at_once)
        say(job, 0, " of it", 2, Finish.STOP)
        last = (await socket.end())[-1]
        problem = last["response"]["error"] if told else last["error"]
        assert last["type"] == ("response.failed" if told else "error") and "its log says" in problem["message"]
        assert last["sequence_number"] == 5 if told else last["status"] == 500
        assert await served.release() is job
        assert "a plugin's" in caplog.text and "Traceback" in caplog.text
        await answered(served, socket)


async def test_what_another_frontend_keeps_is_gone_on_from(served: Served) -> None:
    engine = served.engine
    engine.frontends = 2
    engine.others_payloads[1] = {}
    async with connected(served) as socket:
        first = await answered(served, socket, input="first")
        engine.others_payloads[0], engine.payloads, engine.index = engine.payloads, {}, 1  # the connection's is another
        second = await answered(served, socket, input="second", previous_response_id=first["id"])
        assert second["id"].startswith("resp_01") and len(engine.payloads) == 1
        await socket.create(input="third", previous_response_id=second["id"])
        prompt = await prompt_of(served)
        assert prompt.index('"first"') < prompt.index('"second"') < prompt.index('"third"')
        await socket.end()
        for name in (first["id"].replace("resp_00", "resp_02"), first["id"].replace("resp_00", "resp_01"), "resp_1"):
            error = await socket.refused(previous_response_id=name)
            assert error["error"]["code"] == "previous_response_not_found"


async def test_what_it_goes_on_from_may_be_forgotten_meanwhile(served: Served) -> None:
    """It was read at the beginning, and stands before what follows as well."""
    async with connected(served) as socket:
        first = await answered(served, socket, input="first")
        await socket.create(input="second", store=False, previous_response_id=first["id"])
        job = await served.job()
        assert (await served.ask("DELETE", f"{PATH}/{first['id']}")).status == 200
        finish_all(job)
        second = (await socket.end())[-1]["response"]
        await socket.create(input="third", store=False, previous_response_id=second["id"])
        prompt = await prompt_of(served)
        assert prompt.index('"first"') < prompt.index('"second"') < prompt.index('"third"')
        await socket.end()


async def test_what_is_kept_nowhere_else_is_bounded() -> None:
    """The oldest make room; what alone is too long is not remembered, and costs no other lane its last."""
    async with serving(max_body_bytes=2 * MOST_UNKEPT) as served, connected(served) as socket:
        third = "x" * (MOST_UNKEPT // 3)
        made = [await answered(served, socket, input=third, store=False, stream_id=lane) for lane in "abc"]
        error = await socket.refused(previous_response_id=made[0]["id"], store=False)
        assert error["error"]["code"] == "previous_response_not_found"
        long = await answered(served, socket, input=third * 3, store=False, stream_id="d")
        error = await socket.refused(previous_response_id=long["id"], store=False)
        assert error["error"]["code"] == "previous_response_not_found"
        for lane, one in zip("bc", made[1:], strict=True):
            await answered(served, socket, input="go", store=True, stream_id=lane, previous_response_id=one["id"])
