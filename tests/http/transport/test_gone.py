"""Clients that go away, and clients that do not read: what they held is let go, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job
from actorserve.http.output.answer import Events
from actorserve.http.transport import sse as streams
from tests.http.fakes import finish_all, rendered, say
from tests.http.serving import Client, Served, events_of, text_of

PART = "text " * 200
MANY = 1500  # parts: far more than the buffers of both sockets take


async def begin(served: Served, stream: bool = True, receive_buffer: int | None = None) -> tuple[Client, Job]:
    client = await served.client(receive_buffer)
    client.send("POST", "/v1/completions", {"prompt": "hi", "stream": stream})
    job = await served.job()
    rendered(job)
    return client, job


async def is_released(served: Served, job: Job) -> None:
    assert await served.release() is job
    assert served.engine.running == []
    assert job.listener is None
    assert (await served.ask("GET", "/health")).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_gone_before_the_first_token(served: Served, stream: bool) -> None:
    client, job = await begin(served, stream)
    client.leave()
    await is_released(served, job)
    finish_all(job)  # what was on its way still comes


async def test_gone_during_the_wait_for_a_whole_answer(served: Served) -> None:
    client, job = await begin(served, stream=False)
    say(job, 0, "a")
    client.leave()
    await is_released(served, job)


@pytest.mark.parametrize("politely", [False, True])
async def test_gone_in_the_middle_of_a_stream(served: Served, politely: bool) -> None:
    client, job = await begin(served)
    say(job, 0, "a")
    await client.head()
    if politely:
        client.writer.close()
    else:
        client.leave()
    await is_released(served, job)
    say(job, 0, "b")
    finish_all(job)


async def test_gone_while_another_request_waits_behind(served: Served) -> None:
    client, job = await begin(served)
    client.send("POST", "/v1/completions", {"prompt": "second"})
    await client.writer.drain()
    client.leave()
    await is_released(served, job)
    assert served.engine.jobs.empty(), "what nobody waits for is not begun"


async def test_nothing_is_left_of_those_who_went(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    before = asyncio.all_tasks()
    for turn in range(20):
        client, job = await begin(served, stream=turn % 2 == 0)
        if turn % 3:
            say(job, 0, "a")
        client.leave()
        await is_released(served, job)
    client, job = await begin(served, receive_buffer=4096)
    say(job, 0, "")
    await client.head()
    flood(job)
    client.leave()
    await is_released(served, job)
    for connected in served.clients:
        connected.leave()
    async with asyncio.timeout(10):
        while asyncio.all_tasks() - before:
            await asyncio.wait(asyncio.all_tasks() - before)
    gc.collect()
    assert caplog.records == [], "no task has ended with an exception that nobody looked at"


# --- slow readers --------------------------------------------------------------------------------------------------


def flood(job: Job, parts: int = MANY) -> None:
    """Much more than the sockets take, a turn for each part."""
    for _ in range(parts):
        say(job, 0, PART)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what streams wrote to their transports."""
    sizes: list[int] = []
    write = streams.EventStream._write

    def noted(self: Any, data: bytes) -> None:
        sizes.append(len(data))
        write(self, data)

    monkeypatch.setattr(streams.EventStream, "_write", noted)
    return sizes


async def test_a_slow_reader_gets_all_of_it_in_fewer_events(served: Served, writes: list[int]) -> None:
    client, job = await begin(served, receive_buffer=4096)
    say(job, 0, "first ")
    await client.head()
    flood(job)
    held = sum(map(len, job.choices[0].text))
    assert held > MANY * len(PART) / 2, "the rest waits as text"
    assert sum(writes) < MANY * len(PART) / 2 + (256 << 10), "and not in the transport, too"
    say(job, 0, "last", MANY, Finish.STOP)
    body = await client.rest()
    assert text_of(events_of(body)) == "first " + PART * MANY + "last"
    assert len(events_of(body)) < MANY / 2
    await is_released(served, job)
    assert (await client.ask("GET", "/health")).status == 200


async def test_what_stands_behind_all_text_is_made_behind_it(served: Served) -> None:
    """The usage's id says that all was given out: made while text waits, ids would go back, and it would be lost."""
    client = await served.client(4096)
    asked = {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
    client.send("POST", "/v1/completions", asked, Idempotency_Key="slow")
    job = await served.job()
    rendered(job)
    say(job, 0, "first ")
    await client.head()
    flood(job)
    say(job, 0, "last", MANY, Finish.STOP)
    *ids, last = re.findall(rb"^id: ([0-9a-f]+)-\S*?(u?)$", await client.rest(), re.MULTILINE)
    assert last[1] == b"u" and not any(closed for _, closed in ids)
    assert [int(one, 16) for one, _ in ids] == sorted(int(one, 16) for one, _ in ids)


async def test_an_error_is_numbered_behind_all_text(served: Served) -> None:
    client = await served.client(4096)
    client.send("POST", "/v1/responses", {"input": "hi", "stream": True})
    job = await served.job()
    rendered(job)
    say(job, 0, "first ")
    await client.head()
    flood(job)
    job.fail(ApiError(503, "It is over."))
    job.flush()
    events = re.findall(rb"^data: (.*)$", await client.rest(), re.MULTILINE)
    numbers = [json.loads(event)["sequence_number"] for event in events]
    assert numbers == list(range(len(numbers)))


async def test_a_reader_that_goes_on_while_text_comes(served: Served) -> None:
    client, job = await begin(served, receive_buffer=4096)
    say(job, 0, "")
    await client.head()

    reading = asyncio.ensure_future(client.rest())
    for turn in range(400):
        say(job, 0, PART + str(turn))
        if turn % 7 == 0:
            await asyncio.sleep(0)
    say(job, 0, "", 400, Finish.LENGTH)
    events = events_of(await reading)
    assert text_of(events) == "".join(PART + str(turn) for turn in range(400))
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "length"


async def test_a_reader_that_takes_nothing_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STALL_S", 0.2)
    client, job = await begin(served, receive_buffer=4096)
    other, its_job = await begin(served)
    say(job, 0, "")
    await client.head()
    flood(job)
    say(its_job, 0, "a")
    assert await served.release() is job
    flood(job, 3)  # goes nowhere
    say(its_job, 0, "b", 2, Finish.STOP)
    assert text_of((await other.answer()).events) == "ab", "others are not touched"
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await client.rest()


async def test_one_that_stalls_at_the_very_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """All has been generated, and what is left does not go out."""
    monkeypatch.setattr(streams, "STALL_S", 0.2)
    client, job = await begin(served, receive_buffer=4096)
    flood(job, 1)
    await client.head()
    say(job, 0, PART * MANY, MANY, Finish.STOP)
    await is_released(served, job)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await client.rest()


async def test_one_that_stalls_before_the_end_mark(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STALL_S", 0.2)
    monkeypatch.setattr(Events, "closing", lambda self: PART.encode() * MANY)
    client, job = await begin(served, receive_buffer=4096)
    say(job, 0, "a", 1, Finish.STOP)
    await client.head()
    await is_released(served, job)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await client.rest()


async def test_one_that_reads_slowly_is_not_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than STALL_S for what the transport holds, but it does take some."""
    monkeypatch.setattr(streams, "STALL_S", 1.0)
    client, job = await begin(served, receive_buffer=4096)
    say(job, 0, "")
    await client.head()
    say(job, 0, PART * MANY, MANY, Finish.STOP)
    began, body = asyncio.get_running_loop().time(), b""
    while not body.endswith(b"\r\n0\r\n\r\n"):
        part = await client.reader.read(1 << 16)
        assert part, "cut off"
        body += part
        await asyncio.sleep(0.1)  # the pace of this reader
    assert body.count(PART.encode()) == MANY
    assert asyncio.get_running_loop().time() - began > 2 * streams.STALL_S, "it was slow enough to tell"
