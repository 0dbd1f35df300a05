"""Whose connection of responses is opened, and when it is closed: who says nothing, too much, or what is no message."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from actorserve.http.handlers.responses.socket import MOST_WAITING, MOST_WRONG
from actorserve.http.middleware.context import DRAIN
from actorserve.http.openai.responses.socket import LONGEST_CANCEL
from actorserve.http.transport.websocket import WebSocketChannel
from tests.http.fakes import finish_all, rendered, say
from tests.http.realtime.test_client_secrets import OfFile
from tests.http.serving import PATIENCE_S, Served, serving

from .sockets import PATH, answered, connected


async def test_nobody_is_steered(served: Served) -> None:
    async with connected(served) as socket:
        await socket.send("response.steer", previous_response_id="resp_1", input="left")
        event = await socket.next()
        assert event["type"] == "response.steer.failed" and event["error"]["code"] == "steering_not_supported"
        assert event["steer"] == {"input": "left", "previous_response_id": "resp_1"}


async def test_what_is_generated_is_cancelled(served: Served) -> None:
    """Behind its first event, and what waits behind it; not what comes later, nor another lane's."""
    async with connected(served) as socket:
        await socket.create(input="hi")
        job = await served.job()
        rendered(job)
        say(job, 0, "well")
        assert (await socket.next())["type"] == "response.created"
        await socket.send("response.cancel")
        last = (await socket.end())[-1]
        assert last["type"] == "response.failed" and last["response"]["error"]["message"] == "It was cancelled."
        assert await served.release() is job
        await answered(served, socket)
        await socket.create(input="hi", stream_id="a")
        await socket.create(input="hi", stream_id="b")
        job = await served.job()
        await socket.send("response.cancel", stream_id="b")
        finish_all(job)
        assert [event["type"] for event in await socket.end()][-1] == "response.completed"
        error = (await socket.end())[-1]
        assert (error["error"]["code"], error["stream_id"]) == ("response_cancelled", "b")
        await served.job()
        await answered(served, socket)


async def test_a_response_is_cancelled_by_its_id_alone(served: Served) -> None:
    async with connected(served) as socket:
        await socket.create(input="hi")
        job = await served.job()
        rendered(job)
        say(job, 0, "well")
        created = await socket.next()
        await socket.send("response.cancel", response_id="resp_other")
        await socket.create(input="hi")
        await socket.send("response.cancel", response_id=created["response"]["id"])
        assert (await socket.end())[-1]["type"] == "response.failed"
        assert await served.release() is job
        error = (await socket.next())["error"]
        assert (error["code"], error["param"]) == ("response_cancel_not_active", "response_id")
        assert "'resp_other'" in error["message"]
        finish_all(await served.job())
        assert (await socket.end())[-1]["type"] == "response.completed"
        await answered(served, socket)  # the last cancel was heeded, and is told nothing


async def test_a_cancel_that_is_too_long_is_told_so(served: Served) -> None:
    async with connected(served) as socket:
        await socket.create(input="hi")
        job = await served.job()
        await socket.send("response.cancel", event_id="x" * LONGEST_CANCEL)
        finish_all(job)
        assert (await socket.end())[-1]["type"] == "response.completed"
        error = (await socket.next())["error"]
        assert error["param"] == "message" and f"more than {LONGEST_CANCEL} bytes" in error["message"]


async def test_nothing_is_cancelled_where_nothing_is_generated(served: Served) -> None:
    async with connected(served) as socket:
        await socket.send("response.cancel")
        error = (await socket.next())["error"]
        assert (error["code"], error["param"]) == ("response_cancel_not_active", "type")
        await answered(served, socket)


async def test_who_steers_again_and_again_is_closed_too(served: Served) -> None:
    async with connected(served) as socket:
        for _ in range(MOST_WRONG + 1):
            await socket.send("response.steer")
            assert (await socket.next())["type"] == "response.steer.failed"
        assert (await socket.next())["error"]["code"] == "too_many_errors"
        assert await socket.closed() == 1008


async def test_who_sends_no_messages_is_told_and_then_closed(served: Served) -> None:
    async with connected(served) as socket:
        wrong = (b"{", b"[]", b'{"type": 1}', b"\xff", b"[" * 500, b'{"type":"response.create"}')
        for data in (wrong * MOST_WRONG)[: MOST_WRONG + 1]:
            await socket.socket.send_bytes(data)
            assert (await socket.next())["type"] == "error"
        assert (await socket.next())["error"]["code"] == "too_many_errors"
        assert await socket.closed() == 1008


async def test_who_sends_too_many_at_once_is_closed(served: Served) -> None:
    async with connected(served) as socket:
        for _ in range(MOST_WAITING + 2):
            await socket.create(input="hi")
        job = await served.job()
        assert (await socket.next())["error"]["code"] == "too_many_messages"
        assert await socket.closed() == 1008
        assert await served.release() is job


async def test_who_says_nothing_is_closed() -> None:
    async with serving(realtime_idle_s=0.05) as served, connected(served) as socket:
        error = await socket.next()
        assert (error["status"], error["error"]["code"]) == (408, "session_expired")
        assert await socket.closed() == 1000


async def test_who_waits_for_an_adapter_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is generated yet, and no message waits."""
    loaded, waits, patience_ends = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def want_adapter(name: str | None) -> None:
        waits.set()
        await loaded.wait()

    receive = WebSocketChannel.receive

    async def watched(channel: WebSocketChannel, patience_s: float) -> bytes | None:
        try:
            return await receive(channel, patience_s)
        except TimeoutError:
            if waits.is_set():
                patience_ends.set()
            raise

    monkeypatch.setattr(WebSocketChannel, "receive", watched)
    async with serving(realtime_idle_s=0.5) as served, connected(served) as socket:
        served.engine.want_adapter = want_adapter  # type: ignore[method-assign]
        await socket.create(input="hi")
        async with asyncio.timeout(PATIENCE_S):
            await patience_ends.wait()
        loaded.set()
        finish_all(await served.job())
        assert (await socket.end())[-1]["type"] == "response.completed"


async def test_a_client_that_goes_is_generated_nothing_more(served: Served) -> None:
    async with connected(served) as socket:
        await socket.create(input="hi")
        job = await served.job()
    assert await served.release() is job


async def test_a_server_that_ends_tells_its_clients(served: Served) -> None:
    async with connected(served) as idle, connected(served) as busy:
        await busy.create(input="hi")
        await busy.create(input="later")
        job = await served.job()
        served.app[DRAIN]()
        assert await idle.closed() == 1001
        finish_all(job)
        assert (await busy.end())[-1]["type"] == "response.completed"
        assert await busy.closed() == 1001
    assert served.engine.jobs.empty()


async def test_a_server_that_ends_tells_a_slow_client_too(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    told, waits, has_room = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def drained(_: WebSocketChannel) -> None:
        waits.set()
        await has_room.wait()

    def write_frames(channel: WebSocketChannel, frames: bytes) -> None:
        write(channel, frames)
        if frames:
            told.set()

    write = WebSocketChannel.write_frames
    monkeypatch.setattr(WebSocketChannel, "write_frames", write_frames)
    monkeypatch.setattr(WebSocketChannel, "drained", drained)
    is_full = property(lambda _: told.is_set() and not has_room.is_set())
    monkeypatch.setattr(WebSocketChannel, "is_full", is_full)
    async with connected(served) as socket:
        await socket.send("response.steer")
        await socket.next()
        async with asyncio.timeout(PATIENCE_S):
            await waits.wait()
        served.app[DRAIN]()
        has_room.set()
        assert await socket.closed() == 1001


async def test_keys_and_other_sites_pages() -> None:
    async with serving(api_keys=["right", "other"], allowed_origins=("https://own",)) as served:
        async with connected(served, protocols=["responses", "openai-insecure-api-key.right"]) as socket:
            assert socket.socket.protocol == "responses"
            first = await answered(served, socket)
        async with connected(served, headers={"Authorization": "Bearer other"}) as socket:
            error = await socket.refused(previous_response_id=first["id"])
            assert error["error"]["code"] == "previous_response_not_found"
        for status, headers in (
            (401, {}),
            (403, {"Authorization": "Bearer right", "Origin": "https://other"}),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with connected(served, headers=headers):
                    pass
            assert refused.value.status == status


async def test_what_is_no_websocket(served: Served) -> None:
    answer = await served.ask("GET", PATH)
    assert answer.status == 400 and "WebSocket" in answer.error["message"]


async def test_a_key_that_is_for_one_model_and_ends() -> None:
    accounts = OfFile()
    async with serving(accounts=accounts) as served:
        async with connected(served, headers={"X-Api-Key": "theirs"}) as socket:
            assert (await socket.refused(model="alias/name"))["status"] == 404
            await answered(served, socket, model="tiny")
            accounts.account = None
            error = await socket.refused(model="tiny")
            assert (error["status"], error["error"]["code"]) == (401, "invalid_api_key")
