"""Streams of what a sound says, whose replica is lost: the rest is had of another one, which begins anew."""

from __future__ import annotations

import json

import aiohttp
import pytest
from aiohttp import web

from actorserve.actors.route.request import understand
from actorserve.actors.route.trails.trail import TrailError
from actorserve.actors.route.trails.transcript import Transcript
from tests.support.routers import Routed, routed, stream

PATH = "/v1/audio/transcriptions"
DONE = b'data: {"type":"transcript.text.done","text":"It is late."}\n\n'


def delta(text: str) -> bytes:
    return b"data: %s\n\n" % json.dumps({"type": "transcript.text.delta", "delta": text}).encode()


def error(code: str) -> bytes:
    return b"data: %s\n\n" % json.dumps({"type": "error", "error": {"code": code, "message": "x"}}).encode()


def text_of(passed: bytes) -> str:
    events = [json.loads(one[6:]) for one in passed.split(b"\n\n") if one]
    return "".join(one.get("delta", "") for one in events)


WHOLE = [delta("It"), delta(" is"), delta(" late."), DONE]
OTHERWISE = [delta("It is la"), delta("te"), delta("."), DONE]  # the same text, as another load of the replica cuts it


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize("torn", [b"", b'data: {"type":"tran'])
def test_what_the_client_has_does_not_come_again(cut: int, torn: bytes) -> None:
    transcript = Transcript()
    passed, count = transcript.feed(b"".join(WHOLE[:cut]) + torn)
    assert (passed, count) == (b"".join(WHOLE[:cut]), cut)
    transcript.drop_rest()
    for byte in b"".join(OTHERWISE):
        passed += transcript.feed(bytes([byte]))[0]
    assert text_of(passed) == "It is late." and passed.endswith(DONE) and transcript.closed


def named(kind: str, text: str) -> bytes:
    """An event of Mistral's."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps({"type": kind, "text": text}).encode())


def test_mistrals_events_are_gone_on_with_likewise() -> None:
    kind, done = "transcription.text.delta", named("transcription.done", "It is late.")
    transcript = Transcript()
    assert transcript.feed(named(kind, "It is"))[0] == named(kind, "It is")
    transcript.drop_rest()
    passed = transcript.feed(named(kind, "It") + named(kind, " is la") + named(kind, "te.") + done)[0]
    events = [event.split(b"\ndata: ") for event in passed.split(b"\n\n") if event]
    assert [name for name, _ in events] == [b"event: " + one.encode() for one in (kind, kind, "transcription.done")]
    assert [json.loads(data)["text"] for _, data in events] == [" la", "te.", "It is late."] and transcript.closed


def chunk(replica: int, text: str | None, **more: object) -> bytes:
    """An event of vLLM's."""
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    told = {"id": f"cmpl-{replica}", "created": replica, "choices": choices} | more
    return b"data: %s\n\n" % json.dumps(told, separators=(",", ":")).encode()


def chunks(replica: int, *texts: str) -> list[bytes]:
    told = [chunk(replica, text) for text in (*texts, "")]
    return [*told, chunk(replica, None, usage={"completion_tokens": 4}), b"data: [DONE]\n\n"]


@pytest.mark.parametrize("cut", range(6))
def test_vllms_chunks_are_gone_on_with_likewise(cut: int) -> None:
    """Each comes once, the end and the counts, too, and under one id."""
    first, transcript = chunks(1, "It", " is", " late."), Transcript()
    assert transcript.feed(b"".join(first[:cut])) == (b"".join(first[:cut]), cut)
    transcript.drop_rest()
    passed = b"".join(first[:cut]) + transcript.feed(b"".join(chunks(2, "It is la", "te.")))[0]
    *events, end = passed.removesuffix(b"\n\n").split(b"\n\n")
    told = [json.loads(event[6:]) for event in events]
    assert end == b"data: [DONE]" and transcript.closed
    assert {(one["id"], one["created"]) for one in told} == ({("cmpl-1", 1)} if cut else {("cmpl-2", 2)})
    assert "".join(one["delta"]["content"] for event in told for one in event["choices"]) == "It is late."
    assert [len(event["choices"]) for event in told[-2:]] == [1, 0] and all(event["choices"] for event in told[:-1])
    assert sum(event["choices"] == [{"index": 0, "delta": {"content": ""}}] for event in told) == 1


@pytest.mark.parametrize("form", ["delta", "chunk"])
def test_chunks_of_another_text_are_not_put_behind_it(form: str) -> None:
    transcript = Transcript()
    transcript.feed(chunk(1, "It is"))
    transcript.drop_rest()
    with pytest.raises(TrailError, match="another text"):
        transcript.feed(chunk(2, "It was") if form == "delta" else chunk(2, "It") + chunk(2, ""))


def finish(replica: int) -> bytes:
    return chunk(replica, None, choices=[{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}])


@pytest.mark.parametrize("cut", [2, 3])
def test_no_text_is_put_behind_the_end(cut: int) -> None:
    """The client has the last chunk, with or without the counts behind it, and another replica hears more."""
    transcript, counts = Transcript(), chunk(1, None, usage={"completion_tokens": 4})
    transcript.feed(b"".join([chunk(1, "It is"), finish(1), counts][:cut]))
    transcript.drop_rest()
    with pytest.raises(TrailError, match="another text") as raised:
        transcript.feed(chunk(2, "It is") + chunk(2, " late") + finish(2) + b"data: [DONE]\n\n")
    assert raised.value.passed == b"" and transcript.is_over and not transcript.closed


def test_what_comes_behind_a_chunk_without_text_is_no_other_text() -> None:
    transcript = Transcript()
    passed = transcript.feed(chunk(1, "") + chunk(1, "It is"))[0] + transcript.feed(finish(1))[0]
    assert passed == chunk(1, "") + chunk(1, "It is") + finish(1)


@pytest.mark.parametrize("other", [[delta("It was")], [delta("I"), DONE]])
def test_the_end_of_another_text_is_not_put_behind_it(other: list[bytes]) -> None:
    transcript = Transcript()
    transcript.feed(delta("It is"))
    transcript.drop_rest()
    with pytest.raises(TrailError, match="another text"):
        transcript.feed(b"".join(other))
    assert transcript.is_over


def test_errors_are_passed_on_but_those_that_another_server_does_not_have() -> None:
    transcript = Transcript()
    assert transcript.feed(error("x")) == (error("x"), 1) and transcript.closed
    with pytest.raises(TrailError, match="its server ends"):
        Transcript().feed(error("server_ending"))
    with pytest.raises(TrailError, match="cannot be read"):
        Transcript().feed(b"data: x\n\n")


def test_what_stands_before_an_error_in_one_read_is_the_clients() -> None:
    """Another replica's copy of it is dropped, so it has to be out."""
    transcript = Transcript()
    with pytest.raises(TrailError, match="its server ends") as raised:
        transcript.feed(delta("It is") + error("server_ending"))
    assert raised.value.passed == delta("It is") and transcript.tokens == len("It is")


async def ask(made: Routed) -> bytes:
    form = aiohttp.FormData()
    form.add_field("file", b"\x00sound", filename="a.wav")
    form.add_field("model", "tiny")
    form.add_field("stream", "true")
    async with made.session.post(PATH, data=form) as response:
        assert response.status == 200
        return await response.read()


async def test_the_rest_is_had_of_another_replica() -> None:
    async with routed() as made:
        for replica in made.replicas:

            async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
                asked = sum(len(one.seen) for one in made.replicas)
                assert b"\x00sound" in body
                whole = stream(*OTHERWISE, trail=False)
                return await (stream(*WHOLE[:2], breaks=True, trail=False) if asked == 1 else whole)(request, body)

            replica.answer = answer
        said = await ask(made)
        assert text_of(said) == "It is late." and said.endswith(DONE)
        assert [[seen[1] for seen in one.seen] for one in made.replicas] == [[PATH]] * 2


async def test_nothing_is_lost_where_a_replica_that_ends_says_so_in_one_read() -> None:
    async with routed() as made:
        for replica in made.replicas:

            async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
                asked = sum(len(one.seen) for one in made.replicas)
                ends = stream(b"".join(WHOLE[:2]) + error("server_ending"), trail=False)
                return await (ends if asked == 1 else stream(*OTHERWISE, trail=False))(request, body)

            replica.answer = answer
        said = await ask(made)
        assert text_of(said) == "It is late." and said.endswith(DONE)


async def test_of_another_text_nothing_is_tried_again() -> None:
    async with routed(3) as made:
        for replica, text in zip(made.replicas, ("It", "But", "Or"), strict=True):
            replica.answer = stream(delta(text), breaks=True, trail=False)
        said = await ask(made)
        assert json.loads(said.rpartition(b"data: ")[2])["error"]["code"] == "server_lost"
        assert sum(len(one.seen) for one in made.replicas) == 2


def test_the_model_that_a_form_asks_for_is_known() -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="model"\r\n'
    for more in (b"", b"Content-Type: text/plain\r\n"):
        body = head + more + b'\r\nwhisper\r\n--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n\x00\r\n--x--'
        assert understand("POST", PATH, {}, body, False).model == "whisper"
    assert understand("POST", PATH, {}, b"\x00", False).model == ""
    assert understand("POST", "/v1/other", {}, head + b"\r\nwhisper\r\n--x", False).model == ""
