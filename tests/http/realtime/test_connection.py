"""A realtime connection before an engine that the test plays: what each event does, and what is refused by its name."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.topics.prompts import ChatPrompt
from actorserve.http.middleware.context import DRAIN
from tests.http.fakes import BrokenParser, finish_all, rendered, say
from tests.http.realtime.records import record_for
from tests.http.realtime.talk import HELLO, PATH, SOUND, begun, talking
from tests.http.serving import PATIENCE_S, Served, serving


async def test_a_response_from_its_first_event_to_its_last(served: Served) -> None:
    async with talking(served) as talk:
        job = await begun(served, talk, response={"metadata": {"a": "b"}})
        rendered(job)
        say(job, 0, "hel")
        opened = await talk.until("response.output_text.delta")
        assert [event["type"].removeprefix("response.") for event in opened] == [
            *("output_item.added", "conversation.item.added", "content_part.added", "output_text.delta"),
        ]
        say(job, 0, "lo", 2, Finish.STOP)
        events = await talk.until("response.done")
        assert [event["type"].removeprefix("response.") for event in events] == [
            *("output_text.delta", "output_text.done", "content_part.done"),
            *("conversation.item.done", "output_item.done", "done"),
        ]
        done = events[-1]["response"]
        assert done["status"] == "completed" and done["metadata"] == {"a": "b"}
        assert done["output"][0]["content"] == [{"type": "output_text", "text": "hello"}]
        assert (done["usage"]["input_tokens"], done["usage"]["output_tokens"]) == (5, 2)
        assert await served.release() is job
        item = done["output"][0]
        await talk.send("conversation.item.retrieve", item_id=item["id"])
        assert (await talk.next())["item"] == item
        everything = [*opened, *events]
        assert len({event["event_id"] for event in everything}) == len(everything)


async def test_the_conversation_is_what_the_model_is_asked(served: Served) -> None:
    async with talking(served) as talk:
        await talk.send("session.update", session={"type": "realtime", "instructions": "be short"})
        assert (await talk.next())["session"]["instructions"] == "be short"
        for item, behind in (
            ({**HELLO, "id": "second"}, None),
            ({**HELLO, "id": "first"}, "root"),
            ({"type": "function_call", "name": "now", "call_id": "c", "arguments": "{}", "id": "call"}, None),
            ({"type": "function_call_output", "call_id": "c", "output": "noon"}, "call"),
        ):
            await talk.send("conversation.item.create", item=item, previous_item_id=behind)
            await talk.until("conversation.item.done")
        await talk.send("conversation.item.delete", item_id="second")
        assert (await talk.next()) | {"event_id": ""} == {
            **{"type": "conversation.item.deleted", "event_id": "", "item_id": "second"}
        }
        await talk.send("response.create")
        await talk.until("response.created")
        asked = (await served.job()).prompts[0]
        assert isinstance(asked, ChatPrompt)
        prompt = asked.messages.decode()
        assert '"be short"' in prompt and prompt.count('"hello"') == 1 and prompt.index("noon") > prompt.index('"now"')


async def test_one_response_at_a_time_which_can_be_cancelled(served: Served) -> None:
    async with talking(served) as talk:
        job = await begun(served, talk)
        rendered(job)
        say(job, 0, "half")
        await talk.until("response.output_text.delta")
        assert (await talk.error("response.create"))["code"] == "conversation_already_has_active_response"
        assert (await talk.error("response.cancel", response_id="resp_other"))["param"] == "response_id"
        await talk.send("response.cancel")
        done = (await talk.until("response.done"))[-1]["response"]
        assert done["status"] == "cancelled" and done["output"][0]["status"] == "incomplete"
        assert done["output"][0]["content"][0]["text"] == "half"
        assert await served.release() is job
        assert (await talk.error("response.cancel"))["code"] == "response_cancel_not_active"


async def test_a_response_beside_the_conversation(served: Served) -> None:
    async with talking(served) as talk:
        await talk.send("response.create", response={"conversation": "none", "input": [HELLO]})
        created = await talk.next()
        assert created["response"]["conversation_id"] is None
        finish_all(await served.job())
        events = await talk.until("response.done")
        assert not [event for event in events if event["type"].startswith("conversation.")]
        assert "is empty" in (await talk.error("response.create"))["message"]


async def test_a_failure_ends_the_response_and_not_the_connection(served: Served) -> None:
    async with talking(served) as talk:
        job = await begun(served, talk)
        rendered(job)
        say(job, 0, "x", 1, Finish.ERROR)
        done = (await talk.until("response.done"))[-1]["response"]
        assert done["status"] == "failed" and done["status_details"]["error"]["type"] == "server_error"
        await talk.send("conversation.item.create", item=HELLO)
        assert (await talk.next())["type"] == "conversation.item.added"


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_plugin_that_raises_ends_the_response_and_not_the_connection(
    served: Served, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with talking(served) as talk:
        job = await begun(served, talk)
        rendered(job)
        say(job, 0, "half")
        job.choices[0].parser = BrokenParser(at_once)
        say(job, 0, " of it", 2, Finish.STOP)
        done = (await talk.until("response.done"))[-1]["response"]
        assert done["status"] == "failed" and "its log says" in done["status_details"]["error"]["message"]
        assert done["output"][0]["content"][0]["text"] == "half"
        assert await served.release() is job and "a plugin's" in caplog.text
        finish_all(await begun(served, talk))
        await talk.until("response.done")


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("response.make", {}, "type"),
        ("session.update", {"session": {"type": "transcription"}}, "session.type"),
        ("session.update", {"session": {"output_modalities": ["audio"]}}, "session.output_modalities"),
        ("session.update", {"session": {"voice": "ash"}}, "session.audio.output"),
        ("session.update", {"session": {"colour": 1}}, "session.colour"),
        ("session.update", {"session": {"tools": [{"type": "mcp"}]}}, "session.tools[0].type"),
        ("session.update", {"session": {"temperature": 9}}, "session.temperature"),
        ("session.update", {"session": {"model": "other"}}, "model"),
        (
            "session.update",
            {"session": {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}},
            "session.audio.input.turn_detection",
        ),
        ("session.update", {"session": {"turn_detection": {}}}, "session.audio.input.turn_detection.type"),
        (
            "session.update",
            {"session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}},
            "session.audio.input.format.type",
        ),
        ("session.update", {"session": {"tracing": {"a": 1}}}, "session.tracing"),
        ("conversation.item.create", {"item": {"type": "mcp_call"}}, "item.type"),
        ("conversation.item.create", {"item": {**HELLO, "content": [{"type": "input_audio"}]}}, "item.content[0]"),
        ("conversation.item.create", {"item": HELLO, "previous_item_id": "none"}, "previous_item_id"),
        ("conversation.item.create", {}, "item"),
        ("conversation.item.delete", {"item_id": "none"}, "item_id"),
        ("input_audio_buffer.append", {"audio": SOUND}, "audio"),
        ("response.create", {"response": {"input": [{"type": "item_reference", "id": "x"}]}}, "response.input[0].id"),
        ("response.create", {"response": {"prompt": {"id": "x"}}}, "response.prompt"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_name(
    served: Served, kind: str, fields: dict[str, Any], param: str
) -> None:
    async with talking(served) as talk:
        error = await talk.error(kind, **fields)
        assert error["param"] == param and param.rpartition(".")[2].partition("[")[0] in error["message"], error
        await talk.send("session.update", session={})
        assert (await talk.next())["session"]["instructions"] == ""


async def test_bytes_that_are_no_event(served: Served) -> None:
    async with talking(served) as talk:
        for data in (b"{", b"[]", b'{"type": 1}', b"\xff", b"[" * 500):
            await talk.socket.send_bytes(data)
            assert (await talk.next())["type"] == "error"


async def test_older_names(served: Served) -> None:
    async with talking(served, headers={"OpenAI-Beta": "realtime=v1"}) as talk:
        await talk.send("session.update", session={"modalities": ["text"], "input_audio_format": "pcm16"})
        assert (await talk.next())["type"] == "session.updated"
        await talk.send("conversation.item.create", item=HELLO)
        await talk.send("response.create")
        assert await talk.kinds(2) == ["conversation.item.created", "response.created"]
        finish_all(await served.job())
        kinds = [event["type"] for event in await talk.until("response.done")]
        assert "response.text.delta" in kinds and "response.text.done" in kinds
        assert "conversation.item.done" not in kinds


async def test_a_conversation_has_an_end() -> None:
    async with serving(max_body_bytes=1 << 21) as served, talking(served) as talk:
        long = {**HELLO, "content": [{"type": "input_text", "text": "x" * (1 << 19)}]}
        await talk.send("conversation.item.create", item=long)
        await talk.until("conversation.item.done")
        error = await talk.error("conversation.item.create", item=long)
        assert error["code"] == "conversation_full"


async def test_keys_of_browsers_and_other_sites_pages() -> None:
    async with serving(api_keys=["right"], allowed_origins=("https://own",)) as served:
        async with talking(served, protocols=["realtime", "openai-insecure-api-key.right"]) as talk:
            assert talk.socket.protocol == "realtime"
        for status, options in (
            (401, {"protocols": ["realtime", "openai-insecure-api-key.wrong"]}),
            (401, {}),
            (403, {"headers": {"Authorization": "Bearer right", "Origin": "https://other"}}),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with talking(served, **options):
                    pass
            assert refused.value.status == status


async def test_what_is_no_websocket(served: Served) -> None:
    for path, param in ((PATH, None), (f"{PATH}?call_id=1", "call_id"), (f"{PATH}?intent=transcription", "intent")):
        answer = await served.ask("GET", path)
        assert (answer.status, answer.error["param"]) == (400, param)
    assert (await served.ask("GET", f"{PATH}?model=other")).status == 404


async def test_who_says_nothing_is_closed() -> None:
    async with serving(realtime_idle_s=0.05) as served, talking(served) as talk:
        assert (await talk.next())["error"]["code"] == "session_expired"
        assert await talk.closed() == 1000


async def test_a_server_that_ends_says_so_behind_what_runs(served: Served) -> None:
    async with talking(served) as idle, talking(served) as talk:
        job = await begun(served, talk)
        served.app[DRAIN]()
        assert await idle.closed() == 1001
        assert "about to end" in (await talk.error("response.create"))["message"]
        finish_all(job)
        await talk.until("response.done")
        assert await talk.closed() == 1001


async def test_a_successor_that_drains_tells_what_was_begun_to_its_end(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_for(monkeypatch)
    async with talking(served) as talk:
        await begun(served, talk)
    served.app[DRAIN]()
    record_for(monkeypatch, record.upgraded.kept[-1])
    async with talking(served, greets=False) as talk:
        finish_all(await served.job())
        assert (await talk.until("response.done"))[-1]["response"]["status"] == "completed"
        assert await talk.closed() == 1001
    record_for(monkeypatch)
    async with talking(served) as talk:
        assert await talk.closed() == 1001


async def test_sessions_are_counted_and_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "http")
    async with talking(served):
        async with talking(served) as talk:
            assert (served.engine.sessions, served.engine.answers_begun) == (2, 0)
            finish_all(await begun(served, talk))
            await talk.until("response.done")
        async with asyncio.timeout(PATIENCE_S):
            while served.engine.sessions > 1:
                await asyncio.sleep(0.005)  # nothing tells that the handler has ended
        assert (served.engine.sessions, served.engine.answers_begun) == (1, 1)
    said, _ = [record.message for record in caplog.records if record.message.startswith("session sess_")]
    assert "realtime of tiny; 1 answer, 2 items" in said and said.endswith("closed with 1000")


async def test_a_message_that_cannot_be_read_is_called_one(served: Served) -> None:
    async with talking(served) as talk:
        for data in (b"{", b"\xff", b"[" * 2000):
            await talk.socket.send_bytes(data)
            assert (await talk.next())["error"]["message"].startswith("The message is n")
