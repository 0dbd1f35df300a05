"""What becomes of a request whose sound cannot be fetched just now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actorserve.actors.batch.files import Answers
from actorserve.actors.batch.sender import Sender, Settings
from actorserve.actors.batch.servers import BatchServer
from actorserve.actors.bench.client_tls import OWN
from actorserve.actors.files.lines import Request

PATH = "/v1/audio/transcriptions"


class Ready(BatchServer):
    """One that is there."""

    base_url = ""

    async def _revive(self) -> None:
        raise AssertionError("it was not lost")


class Place:
    """A server of sounds and of their texts: it has so many statuses to say of each before it answers."""

    def __init__(self, sounds: list[int], texts: list[int]) -> None:
        self.left = {"sound": sounds, "text": texts}
        self.asked: list[str] = []

    def _said(self, what: str) -> web.Response:
        self.asked.append(what)
        status = self.left[what].pop(0) if self.left[what] else 200
        return web.json_response({"text": what}, status=status, headers={"Retry-After": "0"})

    async def sound(self, _: web.Request) -> web.Response:
        return self._said("sound")

    async def text(self, asked: web.Request) -> web.Response:
        assert "file" in await asked.post()
        return self._said("text")

    def __call__(self) -> TestServer:
        app = web.Application()
        app.router.add_get("/a.wav", self.sound)
        app.router.add_post(PATH, self.text)
        return TestServer(app)


async def answers_of(place: Place, retries: int, target: Path) -> list[dict[str, Any]]:
    async with place() as server:
        body = {"file_url": str(server.make_url("/a.wav"))}
        line = json.dumps({"custom_id": "a", "url": PATH, "body": body}).encode()
        return await sent(str(server.make_url("")).rstrip("/"), line, retries, target)


async def sent(address: str, line: bytes, retries: int, target: Path) -> list[dict[str, Any]]:
    ready = Ready(5.0, OWN)
    ready.base_url = address
    waiting: Iterator[Request] = iter([msgspec.json.decode(line, type=Request)])
    with Answers(target, {"a"}) as answers:
        await Sender(ready, Settings(1, retries, 60.0, None), answers, lambda: None).run(waiting)
    return [json.loads(line) for line in target.read_text().splitlines()]


@pytest.mark.parametrize(
    ("sounds", "texts", "asked"),
    [
        ([503, 429], [], ["sound", "sound", "sound", "text"]),
        ([503], [503], ["sound", "sound", "text", "text"]),  # what is there is fetched once
    ],
)
async def test_a_sound_is_asked_for_again(
    sounds: list[int], texts: list[int], asked: list[str], tmp_path: Path
) -> None:
    place = Place(sounds, texts)
    (answer,) = await answers_of(place, 10, tmp_path / "out")
    assert answer["error"] is None and answer["response"]["body"] == {"text": "text"}
    assert place.asked == asked


@pytest.mark.parametrize(("sounds", "asked"), [([404], 1), ([503] * 5, 3)])
async def test_one_that_is_not_had_is_told(sounds: list[int], asked: int, tmp_path: Path) -> None:
    place, first = Place(sounds, []), sounds[0]
    (answer,) = await answers_of(place, 2, tmp_path / "out")
    assert answer["response"] is None and answer["error"]["code"] == "no_form"
    assert f"cannot be fetched: {first}" in answer["error"]["message"]
    assert place.asked == ["sound"] * asked


async def test_bytes_of_a_header_that_are_no_text_are_none_in_the_line(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nX-Request-Id: r\xff\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        line = b'{"custom_id": "a", "url": "/v1/completions", "body": {}}'
        (answered,) = await sent(f"http://127.0.0.1:{port}", line, 0, tmp_path / "out")
    assert answered["response"] == {"status_code": 200, "request_id": "r?", "body": {}}
