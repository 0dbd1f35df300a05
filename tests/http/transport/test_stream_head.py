"""The head of a stream is ready before anything has come, and out only with its first text."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from aiohttp import web

from actorserve.actors.protocol.messages import Finish
from actorserve.http.app import make_app
from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job
from actorserve.http.middleware.context import CLOSES
from actorserve.http.transport.sse import EventStream
from tests.http.fakes import finish_all, rendered, say
from tests.http.serving import Client, Served, serving

BODY = {"prompt": "hi", "stream": True}


async def prepared(served: Served, version: str = "1.1", **headers: str) -> tuple[Client, Job]:
    """A stream whose head is ready."""
    client = await served.client()
    client.send("POST", "/v1/completions", BODY, version, **headers)
    job = await served.job()
    assert job.opener is not None
    rendered(job)
    return client, job


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[EventStream]:
    """Those that were prepared."""
    made, prepare = list[EventStream](), EventStream.prepare

    async def noted(self: EventStream) -> None:
        made.append(self)
        await prepare(self)

    monkeypatch.setattr(EventStream, "prepare", noted)
    return made


async def test_it_goes_out_in_the_turn_that_brings_the_first_text(served: Served, streams: list[EventStream]) -> None:
    client, job = await prepared(served)
    writer = streams[0]._request.writer
    assert writer.output_size == 0, "nothing is written before"
    say(job, 0, "a", 1)
    assert writer.output_size > 0 and job.listener is streams[0], "and no task has had its turn since"
    assert (await client.head()).headers["transfer-encoding"] == "chunked"
    assert b'"text":"a"' in await client.chunk()
    finish_all(job)
    await client.rest()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_an_error_instead_of_a_stream_has_a_head_of_its_own(served: Served, version: str) -> None:
    client, job = await prepared(served, version)
    say(job, 0, "", 0, Finish.REJECTED)
    answer = await client.answer()
    assert answer.status == 503 and answer.error["type"] == "service_unavailable_error"
    assert "transfer-encoding" not in answer.headers and "cache-control" not in answer.headers
    assert int(answer.headers["content-length"]) == len(answer.body)
    if version == "1.1":
        assert (await client.ask("GET", "/health")).status == 200, "the connection goes on"


async def test_another_stream_on_the_connection_of_one_that_failed(served: Served) -> None:
    client, job = await prepared(served)
    job.fail(ApiError(400, "prompt: no."))
    assert (await client.answer()).status == 400
    client.send("POST", "/v1/completions", BODY)
    job = await served.job()
    rendered(job)
    say(job, 0, "a", 1, Finish.STOP)
    answer = await client.answer()
    assert [event["choices"][0]["text"] for event in answer.events] == ["a"]


async def test_a_server_that_ends_meanwhile_says_so_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[bool] = []

    async def close(_: web.Request, response: web.StreamResponse) -> None:
        if ends:
            response.force_close()
            response.headers["Connection"] = "close"

    def make(*about: Any) -> web.Application:
        app = make_app(*about)
        app.on_response_prepare.append(close)
        app[CLOSES] = lambda: bool(ends)
        return app

    monkeypatch.setattr("tests.http.serving.make_app", make)
    async with serving() as served:
        client, job = await prepared(served)
        ends.append(True)
        say(job, 0, "a", 1, Finish.STOP)
        answer = await client.answer()
        assert answer.headers["connection"] == "close"
        assert [event["choices"][0]["text"] for event in answer.events] == ["a"]
        assert await client.is_closed()


async def test_text_for_a_client_that_has_just_gone(
    served: Served, streams: list[EventStream], caplog: pytest.LogCaptureFixture
) -> None:
    client, job = await prepared(served)
    transport = streams[0]._request.transport
    assert transport is not None
    transport.abort()  # of which the handler hears later
    say(job, 0, "a", 1)
    assert await served.release() is job
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert await client.is_closed()
