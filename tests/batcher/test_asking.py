"""How a line is asked, until there is an answer that is one."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from actorserve.actors.batcher import asking
from actorserve.actors.batcher.asking import Asker
from actorserve.actors.files.batches import BatchRequest
from actorserve.actors.files.lines import Request, decode_request
from actorserve.actors.files.owner import read_key
from actorserve.actors.options.config import make_config
from actorserve.actors.runtime.way import Way, WayClosed
from tests.batcher.scene import ENDPOINT, line
from tests.files.test_store import BATCH, OWNER, request

SECRET = b"s" * 32
Say = Callable[[int], web.Response]


class Frontend:
    """Answers the nth request with say(n)."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.say: Say = lambda _: web.json_response({"text": "hi"}, headers={"X-Request-Id": "id"})
        self.at_once = self.most_at_once = 0
        self.opened = 0  # connections
        self.closed = False
        self.came = asyncio.Event()  # a line
        self.hold: asyncio.Event | None = None  # until which lines are not answered

    async def answer(self, asked: web.Request) -> web.Response:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.requests.append((dict(asked.headers), await asked.json()))
        self.came.set()
        await (asyncio.sleep(0) if self.hold is None else self.hold.wait())
        self.at_once -= 1
        return self.say(len(self.requests))

    async def model(self, asked: web.Request) -> web.Response:
        self.requests.append((dict(asked.headers), asked.match_info["model"]))
        return self.say(len(self.requests))

    async def open(self, client: str) -> socket.socket:
        """As Way.open."""
        if self.closed:
            self.closed = False
            raise WayClosed
        self.opened += 1
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        return connection

    port = 0


@pytest_asyncio.fixture
async def frontend(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Frontend]:
    made = Frontend()
    app = web.Application()
    app.router.add_post(ENDPOINT, made.answer)
    app.router.add_get("/v1/models/{model:.+}", made.model)
    monkeypatch.setattr(asking, "pause_s", lambda retry_after, tries: 0.0)
    async with TestServer(app) as server:
        assert server.port is not None
        made.port = server.port
        yield made


@pytest_asyncio.fixture
async def asker(frontend: Frontend) -> AsyncIterator[Asker]:
    async for one in asker_of(frontend):
        yield one


async def asker_of(frontend: Frontend, most: int = 4, **options: Any) -> AsyncIterator[Asker]:
    made = Asker(make_config(options), cast(Way, frontend), SECRET, most)
    yield made
    await made.close()


def request_of(name: str = "a", **fields: Any) -> Request:
    return decode_request(line(name, **fields).encode())


def batch() -> BatchRequest:
    return request()


async def test_it_asks_as_the_owner_with_a_key_of_the_line(frontend: Frontend, asker: Asker) -> None:
    answer = await asker.ask(batch(), 7, request_of())
    assert answer["custom_id"] == "a" and answer["error"] is None and answer["id"].startswith("batch_req_")
    assert answer["response"] == {"status_code": 200, "request_id": "id", "body": {"text": "hi"}}
    ((headers, body),) = frontend.requests
    assert headers["Idempotency-Key"] == f"{BATCH}-7" and body == {"model": "m", "prompt": "a"}
    assert read_key(headers["Authorization"].removeprefix("Bearer ").encode(), SECRET) == OWNER


async def test_a_message_batch_of_the_same_id_has_other_keys(frontend: Frontend, asker: Asker) -> None:
    """It was removed and sent again with another body: answers to the lines before are not these."""
    name = f"msgbatch_{'5' * 24}"
    for order in (1, 2):
        await asker.ask(msgspec.structs.replace(batch(), id=name, order=order), 7, request_of())
    assert [headers["Idempotency-Key"] for headers, _ in frontend.requests] == [f"{name}-7-1", f"{name}-7-2"]


async def test_connections_are_used_again(frontend: Frontend, asker: Asker) -> None:
    for number in range(5):
        await asker.ask(batch(), number, request_of())
    assert frontend.opened == 1


async def test_so_many_lines_are_asked_at_once(frontend: Frontend) -> None:
    async for asker in asker_of(frontend, most=2):
        await asyncio.gather(*(asker.ask(batch(), number, request_of()) for number in range(9)))
    assert frontend.most_at_once == 2 and len(frontend.requests) == 9


@pytest.mark.parametrize("given", [{}, {"priority": -3}])
async def test_by_priority_all_others_are_first(frontend: Frontend, given: dict[str, int]) -> None:
    """Unless the line says otherwise."""
    async for asker in asker_of(frontend, scheduling_policy="priority"):
        await asker.ask(batch(), 1, request_of(body=given))
    assert frontend.requests[0][1] == {"priority": 2147483647, **given}


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
async def test_who_cannot_just_now_is_asked_again(frontend: Frontend, asker: Asker, status: int) -> None:
    def busy(count: int) -> web.Response:
        return web.json_response({}, status=200 if count == 20 else status, headers={"Retry-After": "1"})

    frontend.say = busy
    answer = await asker.ask(batch(), 1, request_of())
    assert answer["response"]["status_code"] == 200
    assert {headers["Idempotency-Key"] for headers, _ in frontend.requests} == {f"{BATCH}-1"}


@pytest.mark.parametrize(("status", "times"), [(400, 1), (404, 1), (422, 1), (429, 1), (500, asking.MOST_MISTAKES)])
async def test_what_is_an_answer_is_not_asked_again(frontend: Frontend, asker: Asker, status: int, times: int) -> None:
    """A budget that is used up is one: nobody says when to try again. What fails again and again is one, too."""
    frontend.say = lambda _: web.json_response({"error": {"message": "no"}}, status=status)
    answer = await asker.ask(batch(), 1, request_of())
    assert answer["response"]["status_code"] == status and answer["response"]["body"] == {"error": {"message": "no"}}
    assert len(frontend.requests) == times


async def test_a_connection_that_breaks_is_made_again(frontend: Frontend, asker: Asker) -> None:
    def broken(count: int) -> web.Response:
        if count == 1:
            raise ConnectionError
        return web.json_response({})

    frontend.say, frontend.closed = broken, True
    answer = await asker.ask(batch(), 1, request_of())
    assert answer["response"]["status_code"] == 200 and len(frontend.requests) > 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("stream", True), ("background", True), ("encoding_format", "bytes"), ("encoding_format", "bytes_only")],
)
async def test_what_is_no_line_is_refused_unasked(frontend: Frontend, asker: Asker, name: str, value: object) -> None:
    answer = await asker.ask(batch(), 1, request_of(body={name: value}))
    assert answer["response"]["status_code"] == 400 and not frontend.requests
    assert answer["response"]["body"]["error"]["param"] == name and json.dumps(answer)


@pytest.mark.parametrize("value", [b"1e999", b'"\xff"'])
async def test_what_cannot_be_read_is_the_servers_to_refuse(
    frontend: Frontend, asker: Asker, monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    async def refuse(asked: web.Request) -> dict[str, str]:
        sent.append(await asked.read())
        return {}

    sent = list[bytes]()
    monkeypatch.setattr(web.Request, "json", refuse)
    frontend.say = lambda _: web.json_response({"error": {"message": "no"}}, status=400)
    unread = decode_request(line("a", body={"stream": "?"}).encode().replace(b'"?"', value))
    answer = await asker.ask(batch(), 1, unread)
    assert answer["response"]["status_code"] == 400 and sent == [b'{"stream":' + value + b"}"]


async def test_a_model_is_asked_for_beside_lines_that_take_long(frontend: Frontend) -> None:
    """All that may run at once hold their connections."""
    async for asker in asker_of(frontend, most=1):
        frontend.hold = asyncio.Event()
        asking_one = asyncio.create_task(asker.ask(batch(), 1, request_of()))
        await frontend.came.wait()
        assert await asyncio.wait_for(asker.why_no_model(batch(), "m"), 30) == "" and not asking_one.done()
        frontend.hold.set()
        assert (await asking_one)["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [(404, "model_not_found", "no such model"), (404, None, ""), (200, None, ""), (401, "model_not_found", "")],
)
async def test_it_asks_for_a_model_as_the_owner(
    frontend: Frontend, asker: Asker, status: int, code: str | None, said: str
) -> None:
    error = {"error": {"message": "no such model", "code": code}}
    frontend.say = lambda count: web.json_response(error, status=503 if count == 1 else status)
    assert await asker.why_no_model(batch(), "a b/c?d%2F") == said
    headers, model = frontend.requests[-1]
    assert len(frontend.requests) == 2 and model == "a b/c?d%2F"
    assert read_key(headers["Authorization"].removeprefix("Bearer ").encode(), SECRET) == OWNER


async def test_a_model_that_nobody_can_speak_of_is_left_to_the_lines(frontend: Frontend, asker: Asker) -> None:
    frontend.say = lambda _: web.json_response({}, status=503)
    assert await asker.why_no_model(batch(), "m") == "" and len(frontend.requests) == asking.MODEL_TRIES
