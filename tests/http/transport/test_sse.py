"""The bytes of a stream, event by event, and errors inside it."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Delta, Finish
from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job
from actorserve.http.handlers import answering
from actorserve.http.output import answer as answers
from actorserve.http.transport import sse
from tests.http.fakes import finish_all, rendered, say
from tests.http.serving import HI, Client, Served, serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


async def begin(served: Served, path: str, **fields: Any) -> tuple[Client, Job]:
    """Ask for a stream; its prompt is rendered."""
    client = await served.client()
    prompt: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    client.send("POST", path, {**prompt, "stream": True, **fields})
    job = await served.job()
    rendered(job)
    return client, job


def usage(completion: int, cached: int = 2, prompt: int = 5) -> str:
    return (
        f'{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{prompt + completion},'
        f'"prompt_tokens_details":{{"cached_tokens":{cached}}},"completion_tokens_details":{{"reasoning_tokens":0}}}}'
    )


def lines(head: str, *events: str) -> bytes:
    """Events with one head, and the end mark."""
    return "".join(f"data: {{{head},{event}}}\n\n" for event in events).encode() + b"data: [DONE]\n\n"


def head_of(body: bytes, kind: str) -> str:
    """The fields that all events of a stream share: id and time are the server's own."""
    first = json.loads(body.split(b"\n\n")[0].removeprefix(b"data: "))
    assert first["id"].startswith("chatcmpl-" if "chunk" in kind else "cmpl-") and first["created"] > 1_700_000_000
    return f'"id":"{first["id"]}","object":"{kind}","created":{first["created"]},"model":"tiny"'


def chat(index: int, delta: str, finish: str = "null", reason: str = "") -> str:
    end = f',"stop_reason":{reason}' if reason else ""
    return f'"choices":[{{"index":{index},"delta":{{{delta}}},"logprobs":null,"finish_reason":{finish}{end}}}]'


def text(index: int, part: str, finish: str = "null", reason: str = "") -> str:
    end = f',"stop_reason":{reason}' if reason else ""
    return f'"choices":[{{"index":{index},"text":"{part}","logprobs":null,"finish_reason":{finish}{end}}}]'


ROLE = '"role":"assistant","content":""'
CHUNK = "chat.completion.chunk"


async def three_turns(client: Client, job: Job) -> bytes:
    """A stream of two texts, whose second comes with the end."""
    say(job, 0, 'a"\n', 1)
    answer = await client.head()
    say(job, 0, "", 2)  # half a character: nothing to say yet
    say(job, 0, "\u4e2d", 3, Finish.STOP, stop_reason=7)
    assert answer.status == 200 and answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache" and answer.headers["x-request-id"]
    return await client.rest()


FIRST, SECOND = 'a\\"\\n', "\u4e2d"


async def test_a_chat(served: Served) -> None:
    body = await three_turns(*await begin(served, CHAT))
    assert body == lines(
        head_of(body, CHUNK),
        chat(0, ROLE),
        chat(0, f'"content":"{FIRST}"'),
        chat(0, f'"content":"{SECOND}"'),
        chat(0, "", '"stop"', "7"),
    )


async def test_a_chat_with_usage(served: Served) -> None:
    body = await three_turns(*await begin(served, CHAT, stream_options={"include_usage": True}))
    assert body == lines(
        head_of(body, CHUNK),
        chat(0, ROLE) + ',"usage":null',
        chat(0, f'"content":"{FIRST}"') + ',"usage":null',
        chat(0, f'"content":"{SECOND}"') + ',"usage":null',
        chat(0, "", '"stop"', "7") + ',"usage":null',
        '"choices":[],"usage":' + usage(3),
    )


async def test_a_chat_with_continuous_usage(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = await three_turns(*await begin(served, CHAT, stream_options=options))
    assert body == lines(
        head_of(body, CHUNK),
        chat(0, ROLE) + ',"usage":' + usage(0),
        chat(0, f'"content":"{FIRST}"') + ',"usage":' + usage(1),
        chat(0, f'"content":"{SECOND}"', '"stop"', "7") + ',"usage":' + usage(3),
        '"choices":[],"usage":' + usage(3),
    )


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_a_completion(served: Served, options: Any) -> None:
    body = await three_turns(*await begin(served, TEXT, stream_options=options))
    head = head_of(body, "text_completion")
    assert body == lines(head, text(0, FIRST), text(0, SECOND, '"stop"', "7"))


async def test_a_completion_with_usage(served: Served) -> None:
    body = await three_turns(*await begin(served, TEXT, stream_options={"include_usage": True}))
    none = ',"usage":null'
    last = '"choices":[],"usage":' + usage(3)
    head = head_of(body, "text_completion")
    assert body == lines(head, text(0, FIRST) + none, text(0, SECOND, '"stop"', "7") + none, last)


async def test_a_completion_with_continuous_usage(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = await three_turns(*await begin(served, TEXT, stream_options=options))
    assert body == lines(
        head_of(body, "text_completion"),
        text(0, FIRST) + ',"usage":' + usage(1),
        text(0, SECOND, '"stop"', "7") + ',"usage":' + usage(3),
        '"choices":[],"usage":' + usage(3),
    )


async def test_two_choices_interleaved(served: Served) -> None:
    client, job = await begin(served, CHAT, n=2, stream_options={"include_usage": True})
    say(job, 1, "b", 1)
    await client.head()
    say(job, 0, "a", 1)
    say(job, 1, "", 2, Finish.LENGTH)
    say(job, 0, "A", 4, Finish.STOP_STRING, stop_reason="x")
    body = await client.rest()
    none = ',"usage":null'
    assert body == lines(
        head_of(body, CHUNK),
        chat(0, ROLE) + none,
        chat(1, ROLE) + none,
        chat(1, '"content":"b"') + none,
        chat(0, '"content":"a"') + none,
        chat(1, "", '"length"', "null") + none,
        chat(0, '"content":"A"') + none,
        chat(0, "", '"stop"', '"x"') + none,
        '"choices":[],"usage":' + usage(6),
    )


async def test_several_deltas_of_one_turn_are_one_event(served: Served) -> None:
    client, job = await begin(served, TEXT)
    for at, part in enumerate("abc"):
        job.delta(0, Delta(0, at, part, at + 1), 0)
    job.flush()
    job.delta(0, Delta(0, 3, "d", 4), 0)
    job.delta(0, Delta(0, 4, "", 4, Finish.STOP), 0)
    job.flush()
    events = (await client.answer()).events
    assert [event["choices"][0]["text"] for event in events] == ["abc", "d"], "the stream begins with the first turn"


async def test_events_come_at_once(served: Served) -> None:
    client, job = await begin(served, CHAT)
    say(job, 0, "a")
    assert (await client.head()).status == 200
    assert b'"role":"assistant"' in await client.chunk() and b'"content":"a"' in await client.chunk()
    say(job, 0, "b")
    assert b'"content":"b"' in await client.chunk()
    say(job, 0, "", 2, Finish.STOP)
    assert b'"finish_reason":"stop"' in await client.chunk()
    assert await client.chunk() == b"data: [DONE]\n\n" and await client.chunk() == b""


# --- errors inside -------------------------------------------------------------------------------------------------


async def test_an_error_inside_the_stream(served: Served) -> None:
    client, job = await begin(served, TEXT, n=2)
    say(job, 0, "a")
    await client.head()
    say(job, 1, "b")
    say(job, 1, "", 1, Finish.ERROR)
    say(job, 0, "dropped")
    body = await client.rest()
    *events, error, done, _ = body.decode().split("\n\n")
    assert len(events) == 2 and done == "data: [DONE]" and "dropped" not in body.decode()
    assert json.loads(error.removeprefix("data: ")) == {
        "error": {
            "message": "The engine could not compute this request.",
            "type": "server_error",
            "param": None,
            "code": None,
        }
    }
    assert await served.release() is job
    assert (await client.ask("GET", "/health")).status == 200, "the connection is kept"


async def test_text_that_came_with_the_error_is_not_lost(served: Served) -> None:
    client, job = await begin(served, TEXT)
    say(job, 0, "a")
    await client.head()
    job.delta(0, Delta(0, 1, "b", 2), 0)
    job.fail(ApiError(503, "It is over."))
    job.flush()
    body = await client.rest()
    assert [json.loads(line[6:]).get("error") for line in body.decode().split("\n\n")[:3]][:2] == [None, None]
    assert b'"text":"b"' in body and body.index(b'"text":"b"') < body.index(b"It is over.")


async def test_a_mistake_of_ours_inside_the_stream(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No second answer into the middle of the first: the stream breaks off, and its client sees that."""

    def broken(self: object) -> bytes:
        raise RuntimeError("deep inside")

    monkeypatch.setattr(answers.Events, "closing", broken)
    client = await served.client()
    client.send("POST", TEXT, {"prompt": "hi", "stream": True})
    finish_all(await served.job())
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await client.answer()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        f"POST {TEXT} failed"
    ]
    await served.release()
    assert (await served.ask("GET", "/health")).status == 200


def test_ids_differ() -> None:
    assert len({answers.Answer("a", True, seed, 5).id for seed in (*range(100), 1 << 63, (1 << 64) - 1)}) == 102
    assert answers.Answer("a", True, 7, 5).id == answers.Answer("a", True, 7, 5).id


# --- comments of a stream that has nothing to say ------------------------------------------------------------------

COMMENT = b": keep-alive\n\n"


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/messages", "/v1/responses"])
async def test_a_connection_is_kept_alive_before_anything_has_come(path: str) -> None:
    bodies: dict[str, Any] = {"/v1/messages": {"messages": HI, "max_tokens": 9}, "/v1/responses": {"input": "hi"}}
    async with serving(keep_alive_s=0.01) as served:
        client = await served.client()
        body = bodies.get(path) or ({"messages": HI} if path == CHAT else {"prompt": "hi"})
        client.send("POST", path, {**body, "stream": True})
        job = await served.job()
        assert (await client.head()).status == 200
        assert [await client.chunk() for _ in range(3)] == [COMMENT] * 3
        finish_all(job)
        rest = await client.rest()
        said = rest.replace(COMMENT, b"")
        assert b"yes0" in said and said.startswith((b"data: {", b"event: ")) and said.count(b"\n\n") > 1


@pytest.mark.parametrize("path", [CHAT, TEXT, "/completion"])
async def test_how_far_a_prompt_has_come(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events say it before there is a text, and the first that is of the answer, that all of it has been read."""
    for module in (answering, sse):
        monkeypatch.setattr(module, "PROGRESS_S", 0.01)
    async with serving() as served:
        client = await served.client()
        client.send("POST", path, {"messages": HI, "prompt": "hi", "stream": True, "return_progress": True})
        job = await served.job()
        served.engine.job_times.scheduled = 1
        job.rendered(0, 7)
        served.engine.computed = 4
        assert (await client.head()).status == 200
        (event,) = (json.loads(line[6:]) for line in (await client.chunk()).splitlines() if line)
        assert event["prompt_progress"].pop("time_ms") > 0
        assert event["prompt_progress"] == {"total": 7, "cache": 0, "processed": 4}
        choice = event if path == "/completion" else event["choices"][0]
        assert choice["index"] == 0 and not choice.get("finish_reason") and not choice.get("stop")
        say(job, 0, "yes", 1, Finish.STOP)
        lines = (await client.rest()).splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        told = [event["prompt_progress"]["processed"] for event in events if "prompt_progress" in event]
        assert set(told[:-1]) <= {4} and told[-1] == 7
        assert "yes" in json.dumps(events[len(told) :]) and "yes" not in json.dumps(events[: len(told)])


async def test_what_ends_before_it_is_read_has_no_progress() -> None:
    async with serving() as served:
        client = await served.client()
        client.send("POST", CHAT, {"messages": HI, "stream": True, "return_progress": True})
        (await served.job()).fail(ApiError(503, "no room"))
        assert (await client.answer()).status == 503


async def test_between_two_texts_too_and_never_within_one() -> None:
    async with serving(keep_alive_s=0.01) as served:
        client, job = await begin(served, TEXT)
        await client.head()
        say(job, 0, "one", 1)
        while (chunk := await client.chunk()) == COMMENT:
            pass  # as many as came before
        assert b'"one"' in chunk and await client.chunk() == COMMENT
        say(job, 0, "two", 2, Finish.STOP)
        assert b'"two"' in (await client.rest()).replace(COMMENT, b"")


async def test_an_error_behind_a_comment_stands_in_the_stream() -> None:
    async with serving(keep_alive_s=0.01) as served:
        client, job = await begin(served, CHAT)
        assert (await client.head()).status == 200 and await client.chunk() == COMMENT
        job.fail(ApiError(500, "it broke"))
        rest = (await client.rest()).replace(COMMENT, b"")
        assert json.loads(rest.split(b"\n\n")[0].removeprefix(b"data: "))["error"]["message"] == "it broke"


async def test_other_streams_have_no_comments() -> None:
    """Lines of JSON are all that Ollama's clients read."""
    async with serving(keep_alive_s=0.01) as served:
        client = await served.client()
        client.send("POST", "/api/chat", {"messages": HI})
        job = await served.job()
        await asyncio.sleep(0.05)  # nothing tells that nothing is written
        finish_all(job)
        await client.head()
        assert all(json.loads(line) for line in (await client.rest()).splitlines())
