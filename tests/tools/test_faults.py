"""What tools/chaos/faults asks for, and how it takes what it is told; it is run by tests/project/test_chaos.py."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.server import Server
from tools.chaos import faults_hits
from tools.chaos.clients import doors, responding, sessions, talking
from tools.chaos.clients.answers import Tally
from tools.chaos.clients.mixed import mixed_requests
from tools.chaos.clients.texts import EXTRAS, requests
from tools.chaos.faults_options import make_parser, read_options
from tools.chaos.operating import Operator

Answer = Callable[[web.WebSocketResponse, web.Request], Awaitable[Any]]
WITH_SOCKETS = [  # whose clients they are, and what these ask for
    (talking.talk, {"turns": ["Hello!"], "most": 8}),
    (responding.respond, {"turns": ["done"], "way": "socket", "stream": True}),
]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--realtime --sounds --sessions", "leave out --sessions"),
        ("--responses --http2", "--responses does not go over HTTP/2"),
        ("--doors --http2", "--doors does not go over HTTP/2"),
        ("--sessions --http2", "--sessions does not go over HTTP/2"),
        ("--realtime --http2", "--realtime does not go over HTTP/2"),
        ("--responses --lora 2", "--lora is for the packaged model"),
        ("--responses --operations weights", "--operations weights is for the packaged model"),
        ("--dtype float32 FOLDER --operations weights", "--operations weights is for the packaged model"),
        ("--model FOLDER --operations weights", "--operations weights is for the packaged model"),
        ("--operations pauses adapters", "give --lora COUNT"),
    ],
)
def test_what_does_not_go_together_is_told_at_once(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(make_parser("about"), words.split())
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "FOLDER --realtime --sounds",
        "--http2 --pooled FOLDER",
        "--operations pauses weights --sessions --realtime",
        "--operations adapters weights --lora 2 --dtype float32",
        "--responses --sessions",
    ],
)
def test_what_goes_together(words: str) -> None:
    read_options(make_parser("about"), words.split())


def test_each_extra_meets_each_way_of_asking() -> None:
    """Greedy or seeded (but for what brings its own), streamed or at once."""
    ways: dict[int, set[tuple[bool, bool]]] = {at: set() for at in range(len(EXTRAS))}
    for number, (_, body) in enumerate(requests(random.Random(0), 60)):
        ways[number % len(EXTRAS)].add((body["temperature"] == 0, body["stream"]))
    for at, extra in enumerate(EXTRAS):
        drawn = {False} if "temperature" in extra else {True, False}
        assert {greedy for greedy, _ in ways[at]} == drawn and {streamed for _, streamed in ways[at]} == {True, False}


def test_each_kind_of_requests_is_asked_of_each_adapter() -> None:
    words = "--sessions --realtime --lora 3 --requests 8"
    options, _ = read_options(make_parser("about"), words.split())
    asked = {(path, body["model"]) for path, body in mixed_requests(options, random.Random(0))}
    names = ["", "adapter-0", "adapter-1", "adapter-2"]
    assert asked == {(path, name) for path in (sessions.PATH, talking.PATH) for name in names}


async def heard(ask: Callable[..., Awaitable[Any]], body: dict[str, Any], answer: Answer) -> Tally:
    """What is counted of a client that comes by the relay, where its socket is answered like that."""

    async def take(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await answer(socket, request)
        return socket

    app = web.Application()
    app.add_routes([web.get(path, take) for path in (talking.PATH, responding.PATH)])
    async with TestServer(app) as server, aiohttp.ClientSession(server.make_url("/")) as session:
        tally = Tally(relayed=session)
        assert await ask(session, body, tally) is None
        return tally


@pytest.mark.parametrize(("ask", "body"), WITH_SOCKETS)
def test_a_server_that_closes_is_no_reset_of_the_relay(ask: Any, body: dict[str, Any]) -> None:
    tally = asyncio.run(heard(ask, body, lambda socket, _: socket.close(code=1011)))
    assert tally.counts == {"failed": 1} and "1011" in tally.examples[0]


@pytest.mark.parametrize(("ask", "body"), WITH_SOCKETS)
def test_a_connection_that_is_lost_is_a_reset_of_the_relay(ask: Any, body: dict[str, Any]) -> None:
    async def cut(_: web.WebSocketResponse, request: web.Request) -> None:
        assert request.transport is not None
        request.transport.abort()

    assert asyncio.run(heard(ask, body, cut)).counts == {"reset with the relay": 1}


@pytest.mark.parametrize(("ask", "body"), WITH_SOCKETS)
def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(
    ask: Any, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing(socket: web.WebSocketResponse, _: web.Request) -> None:
        async for _message in socket:
            pass

    monkeypatch.setattr(talking, "LONGEST_S", 0.01)
    tally = asyncio.run(heard(ask, body, say_nothing))
    assert tally.counts == {"failed": 1} and "TimeoutError" in tally.examples[0]


def test_a_response_is_asked_of_the_model_that_its_request_names() -> None:
    named: list[str] = []

    async def note(socket: web.WebSocketResponse, _: web.Request) -> None:
        named.append((await socket.receive_json())["model"])
        await socket.close()

    asyncio.run(heard(responding.respond, {"turns": ["done"], "way": "socket", "model": "adapter-1"}, note))
    assert named == ["adapter-1"]


def test_calls_that_were_made_twice_are_found(tmp_path: Path) -> None:
    assert responding.calls_made_twice(tmp_path) == []
    (tmp_path / "calls").write_text("<done>#1.1\n<once>#1.1\n<done>#1.2\n<done>#1.1\n")
    assert responding.calls_made_twice(tmp_path) == ["<done>#1.1"]


class Workers:
    """A server whose workers are hit, and come again."""

    lines: tuple[str, ...] = ()

    def pids(self) -> dict[str, int]:
        return {"worker@0": 10, "worker-0@1": 11, "scheduler@1": 12}

    def wait_for(self, pattern: str) -> None:
        assert "is up" in pattern


def test_workers_of_engines_that_are_parked_are_not_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: set[int] = set()
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.add(pid) if number == signal.SIGKILL else None)
    server, rng = cast(Server, Workers()), random.Random(0)
    for engines, expected in ((1, {10}), (2, {10, 11}), (None, {10, 11})):
        killed.clear()
        for _ in range(20):
            faults_hits.hit([server], "worker", "kill -9", rng, engines=engines)
        assert killed == expected


def test_an_engine_is_parked_when_who_was_hit_has_come_up(tmp_path: Path) -> None:
    """From when this is wanted on no worker of it is hit."""
    said: list[str] = []

    async def note(path: str, body: dict[str, Any]) -> None:
        said.append(f"{body['new_data_parallel_size']}, {operator.engines} stay")
        if body["new_data_parallel_size"] == 2:
            await operator.hit.acquire()

    async def scale() -> None:
        async with aiohttp.ClientSession() as session:
            operator._session = session
            scaling = asyncio.create_task(operator.scale())
            while not operator.hit.locked() or operator.engines == 1:
                await asyncio.sleep(0)
            operator.hit.release()
            await scaling

    operator = Operator(cast(aiohttp.ClientSession, None), random.Random(0), tmp_path, Counter())
    operator._ask = note  # type: ignore[method-assign,assignment]
    asyncio.run(scale())
    assert said == ["2, 1 stay", "1, 1 stay"]


def test_each_door_says_the_same_again(demo_server: Server) -> None:
    """Those that are this tool's own; how others' answers are read is tried with their seams."""
    asked = [body for _, body in doors.doors(random.Random(0), 90) if body["name"] in (*doors.OWN, *doors.WHOLE)]
    assert {body["name"] for body in asked} == {*doors.OWN, *doors.WHOLE}

    async def twice() -> None:
        async with aiohttp.ClientSession(demo_server.base_url) as session:
            tally = Tally()
            for body in asked:
                first, second = [await doors.enter(session, body, tally) for _ in range(2)]
                assert first is not None and first == second, (body, tally.examples)

    asyncio.run(twice())
