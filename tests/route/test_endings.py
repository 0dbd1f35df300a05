"""Streams with which nobody goes on end by an error of their API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from actorserve.actors.route.endings import MARK, Ending
from tests.support.routers import Routed, asked_of, breaks_off, event, routed, status, stream

LOST = b"server that made this answer was lost"


async def read(made: Routed, method: str, path: str, gate: asyncio.Event) -> bytes:
    """What comes behind the first event, once that has come and the replica breaks off."""
    body = {"model": "tiny", "prompt": "x", "stream": True} if method == "POST" else None
    async with made.session.request(method, path, json=body) as answer:
        assert (await answer.content.readuntil(b"\n\n")).startswith(b"data: ")
        gate.set()
        return await answer.content.read()


@pytest.mark.parametrize(
    ("path", "first", "head", "told", "mark"),
    [
        (
            "/v1/responses",
            b'data: {"sequence_number":6}\n\n',
            b"event: error\n",
            {"type": "error", "sequence_number": 7},
            b"",
        ),
        (
            "/responses",
            b'data: {"sequence_number":6}\n\n',
            b"event: error\n",
            {"type": "error", "sequence_number": 7},
            b"",
        ),
        ("/v1/messages", b"data: 1\n\n", b"event: error\n", {"type": "error"}, b""),
        ("/v1/completions", b"data: 1\n\n", b"", {}, MARK),
        ("/chat/completions", b"data: 1\n\n", b"", {}, MARK),
        ("/api/v0/chat/completions", b"data: 1\n\n", b"", {}, MARK),
        ("/api/v0/completions", b"data: 1\n\n", b"", {}, MARK),
        ("/generate", b"data: 1\n\n", b"", {}, MARK),
        ("/completions", b"data: 1\n\n", b"", {}, b""),
        ("/generate_stream", b"data: 1\n\n", b"", {"error_type": "generation"}, b""),
        ("/", b"data: 1\n\n", b"", {"error_type": "generation"}, b""),
        ("/v1/chat", b"data: 1\n\n", b"event: stream-end\n", {"event_type": "stream-end", "is_finished": True}, b""),
    ],
)
async def test_a_stream_without_a_trail(
    path: str, first: bytes, head: bytes, told: dict[str, Any], mark: bytes
) -> None:
    """The error stands behind the last event that is whole, and before the mark of the API's streams."""
    async with routed() as made:
        gate = asyncio.Event()
        for replica in made.replicas:
            replica.answer = stream(first, b"data: 2", breaks=True, trail=False, gate=gate)
        said = await read(made, "POST", path, gate)
        assert said.startswith(head + b"data: {") and said.endswith(b"}\n\n" + mark)
        assert json.loads(said.removesuffix(mark).rpartition(b"data: ")[2]).items() >= told.items() and LOST in said
        assert sum(asked_of(made)) == 1


async def test_one_with_a_trail_with_which_nobody_goes_on() -> None:
    async with routed(retries=2) as made:
        gate = asyncio.Event()
        first = stream(event("one", 3, 1, 5), breaks=True, gate=gate)

        async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
            return await (breaks_off if request.path == "/go_on" else first)(request, body)

        for replica in made.replicas:
            replica.answer = answer
        said = await read(made, "POST", "/v1/completions", gate)
        assert said.startswith(b'data: {"error":') and b"server_lost" in said
        assert sum(asked_of(made)) == 3


async def test_the_stream_of_a_response_that_is_kept() -> None:
    """No other replica's 404 is written into it."""
    async with routed() as made:
        gate = asyncio.Event()
        made.replicas[0].answer = stream(b"data: 1\n\n", breaks=True, trail=False, gate=gate)
        made.replicas[1].answer = status(404)
        said = await read(made, "GET", "/v1/responses/resp_1?stream=true", gate)
        assert said.count(b"data: ") == 1 and b"server_lost" in said


@pytest.mark.parametrize("prefix", ["", "/cohere"])
def test_streams_of_cohere_end_as_those_that_fail(prefix: str) -> None:
    """Each version's, in events and in lines."""
    events, lines = "text/event-stream", "application/x-ndjson"
    told = Ending(f"{prefix}/v1/chat", events).error()
    line = Ending(f"{prefix}/v1/chat", lines).error()
    assert told == b"event: stream-end\ndata: %s\n" % line and line.endswith(b"}\n")
    assert json.loads(line).items() >= {"event_type": "stream-end", "finish_reason": "ERROR"}.items() and LOST in line
    told = Ending(f"{prefix}/v2/chat", events).error()
    head, data, *rest = told.split(b"\n")
    assert head == b"event: message-end" and rest == [b"", b"data: [DONE]", b"", b""]
    delta = json.loads(data.removeprefix(b"data: "))["delta"]
    assert delta["finish_reason"] == "ERROR" and LOST in delta["error"].encode()
    assert json.loads(Ending(f"{prefix}/v2/chat", lines).error()) == {
        **{"type": "message-end", "event": "message-end"},
        **{"delta": delta, "data": {"delta": delta}},
    }


@pytest.mark.parametrize("task", ["transcriptions", "translations"])
def test_transcripts_end_as_they_have_begun(task: str) -> None:
    """Chunks, which are vLLM's, by an error and the mark, as a server ends them; also where a text speaks of chunks."""
    chunk = {"choices": [{"index": 0, "delta": {"content": "It"}, "finish_reason": None}]}
    delta = {"type": "transcript.text.delta", "delta": '"choices":'}
    for first, keys, mark in ((chunk, {"error"}, MARK), (delta, {"type", "error"}, b"")):
        ending = Ending(f"/v1/audio/{task}", "text/event-stream")
        ending.note(b"data: %s\n\n" % json.dumps(first, separators=(",", ":")).encode())
        ending.note(b"")
        told = ending.error()
        assert told.endswith(b"}\n\n" + mark) and LOST in told
        assert json.loads(told.removesuffix(mark).removeprefix(b"data: ")).keys() == keys


def test_what_has_no_events_gets_none() -> None:
    """Sounds, and what is compressed; of lines each is one."""
    assert Ending("/v1/audio/speech", "audio/wav").error() == b""
    assert Ending("/v1/completions", "text/event-stream", is_encoded=True).error() == b""
    lines = Ending("/api/chat", "application/x-ndjson")
    assert [lines.whole(part) for part in (b'{"a":', b"1}\n{", b"}\n")] == [b"", b'{"a":1}\n', b"{}\n"]
    assert LOST in lines.error() and lines.error().endswith(b"\n")
    whole = Ending("/v1/completions", "text/event-stream; charset=utf-8")
    assert (whole.whole(b"data: 1\n\ndata: 2"), whole.rest(), whole.rest()) == (b"data: 1\n\n", b"data: 2", b"")
