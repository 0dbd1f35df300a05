"""Sounds that lines of a batch name: from their addresses, and when they are asked for again."""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actorserve.actors.batch import sounds
from actorserve.actors.batch.forms import FormError
from actorserve.actors.batch.sounds import Sounds

SOUND = b"RIFF some bytes"
URL = f"data:audio/wav;base64,{base64.b64encode(SOUND).decode()}"


def serve(statuses: dict[str, int], seen: list[str | None]) -> TestServer:
    """`/NAME.wav` has the status of that name, or is there; with the keys that were sent."""

    async def sound(asked: web.Request) -> web.Response:
        seen.append(asked.headers.get("Authorization"))
        status = statuses.get(asked.match_info["name"], 200)
        return web.Response(body=SOUND, status=status, headers={"Retry-After": "7"} if status == 429 else {})

    app = web.Application()
    app.router.add_get("/{name}.wav", sound)
    return TestServer(app)


async def fetch(url: str) -> bytes:
    async with Sounds(60.0).at(url) as sound:
        return sound


async def test_a_sound_is_fetched_without_the_servers_key() -> None:
    seen: list[str | None] = []
    async with serve({}, seen) as server:
        assert await fetch(str(server.make_url("/a.wav"))) == SOUND and seen == [None]
    assert await fetch(URL) == SOUND


@pytest.mark.parametrize(("status", "retry_after"), [(404, None), (429, "7"), (503, ""), (520, "")])
async def test_which_failures_pass(status: int, retry_after: str | None) -> None:
    async with serve({"a": status}, []) as server:
        with pytest.raises(FormError, match=f"cannot be fetched: {status}") as told:
            await fetch(str(server.make_url("/a.wav")))
        assert told.value.retry_after == retry_after
        gone = str(server.make_url("/b.wav"))
    with pytest.raises(FormError, match="cannot be fetched") as told:
        await fetch(gone)
    assert told.value.retry_after == ""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://a.b/c", "must begin with https"),
        ("data:audio/wav,abc", "data:TYPE;base64"),
        ("data:audio/wav;base64,?", "base64 cannot be read"),
        *((url, "cannot be fetched") for url in ("http://", "http://a..b/x.wav", "http://.x/", f"http://{'a' * 64}/")),
    ],
)
async def test_an_address_that_is_none_stays_so(url: str, said: str) -> None:
    with pytest.raises(FormError, match=said) as told:
        await fetch(url)
    assert told.value.retry_after is None


async def test_an_error_that_quotes_no_text_is_one() -> None:
    async def away(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://[\udcff/"})

    app = web.Application()
    app.router.add_get("/a.wav", away)
    async with TestServer(app) as server:
        with pytest.raises(FormError, match="cannot be fetched") as told:
            await fetch(str(server.make_url("/a.wav")))
    assert str(told.value).encode()


async def test_a_sound_of_no_told_length_holds_no_more_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sounds, "LONGEST", most := 2 * len(SOUND))
    monkeypatch.setattr(sounds, "MOST_HELD", most + len(SOUND))

    async def streamed(asked: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(asked)
        await response.write(SOUND)
        return response

    app = web.Application()
    app.router.add_get("/a.wav", streamed)
    async with TestServer(app) as server:
        held = Sounds(60.0)
        async with held.at(url := str(server.make_url("/a.wav"))), held.at(url):
            assert held._room == len(SOUND)
        assert held._room == most + len(SOUND)


async def test_as_many_bytes_are_held_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sounds, "LONGEST", len(SOUND))
    monkeypatch.setattr(sounds, "MOST_HELD", 2 * len(SOUND))
    seen: list[str | None] = []
    async with serve({}, seen) as server:
        url, held = str(server.make_url("/a.wav")), Sounds(60.0)
        waits, wait = asyncio.Event(), held._freed.wait
        monkeypatch.setattr(held._freed, "wait", lambda: waits.set() or wait())  # type: ignore[func-returns-value]
        async with held.at(url), AsyncExitStack() as second, AsyncExitStack() as third:
            await second.enter_async_context(held.at(url))
            fetched = asyncio.create_task(third.enter_async_context(held.at(url)))
            waiting = asyncio.create_task(waits.wait())
            await asyncio.wait([fetched, waiting], return_when=asyncio.FIRST_COMPLETED)
            assert not fetched.done() and len(seen) == 3
            await second.aclose()
            assert await fetched == SOUND and len(seen) == 4, "no connection waits for room, and is cut meanwhile"
        monkeypatch.setattr(sounds, "LONGEST", len(SOUND) - 1)
        with pytest.raises(FormError, match="is longer than 14 bytes"):
            await fetch(url)
