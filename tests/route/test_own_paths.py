"""The paths, keys and drains of the router itself, and what it bounds of its clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from actorserve.actors.route import errors, server
from tests.support.routers import END, STREAM, Routed, asked_of, event, goes_on_from, routed, stream, stuck


async def test_it_says_who_is_there() -> None:
    async with routed() as made:
        made.replicas[0].ready = 503
        await made.until(lambda: not made.router.fleet.replicas[0].is_up)
        async with made.session.get("/ready") as answer:
            told = await answer.json()
            assert (answer.status, told["status"]) == (200, "degraded")
            assert set(told["replicas"].values()) == {"not ready (503)", "ready"}
        made.replicas[1].ready = 503
        await made.until(lambda: not made.router.fleet.replicas[1].is_up)
        async with made.session.get("/ready") as answer:
            assert answer.status == 503
        async with made.session.get("/health") as answer:
            assert answer.status == 200
        async with made.session.get("/metrics") as answer:
            text = await answer.text()
            assert f'actorserve_router_replica_up{{replica="{made.replicas[0].address}"}} 0.0' in text


async def test_a_drained_replica_gets_nothing_and_may_give_away_what_it_has() -> None:
    async with routed() as made:
        gate = asyncio.Event()
        for replica in made.replicas:
            replica.answer = goes_on_from(event("one", 3, 1, 5), breaks=False, gate=gate)
        response = await made.session.post("/v1/completions", json={"prompt": "x", **STREAM})
        assert await response.content.readany() == b'data: "one"\n\n'
        first = made.replicas[asked_of(made).index(1)]
        heads = {"Authorization": "Bearer admin"}
        asked = {"replica": first.address, "move": True}
        async with made.session.post("/drain", json=asked, headers=heads) as answer:
            assert (await answer.json())["moved"] == 1
        assert await response.read() == b'data: "two"\n\ndata: [DONE]\n\n'
        async with made.session.post("/drain", json={"replica": first.address, "undo": True}, headers=heads) as answer:
            assert (await answer.json())["status"] == "ready"


@pytest.mark.parametrize(
    ("body", "key", "code"),
    [
        ({"replica": "http://nobody"}, "admin", 400),
        ({"replicas": "x"}, "admin", 400),
        ({"move": True}, "admin", 400),
        ({}, "wrong", 401),
    ],
)
async def test_a_drain_that_cannot_be(body: object, key: str, code: int) -> None:
    async with routed(1) as made:
        async with made.session.post("/drain", json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
            assert answer.status == code
        assert not made.router.ends.is_set()


async def test_in_a_drain_what_runs_ends() -> None:
    async with routed(1) as made:
        gate = asyncio.Event()
        made.replicas[0].answer = stream(event("one", 3, 1, 5), END, gate=gate)
        response = await made.session.post("/v1/completions", json={"prompt": "x", **STREAM})
        async with made.session.post("/drain", headers={"Authorization": "Bearer admin"}) as answer:
            assert await answer.json() == {"status": "draining", "in_flight": 1}
        await refuses(made)
        gate.set()
        assert (await response.read()).endswith(b"[DONE]\n\n")
        await asyncio.wait_for(made.running, 20)


async def refuses(made: Routed) -> None:
    """Wait until nobody listens any more."""
    base = made.session._base_url
    assert base is not None
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection(base.host, base.port)
                writer.close()
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                pass  # it was closed under it
            await asyncio.sleep(0.01)  # nothing tells of a port that is closed


async def test_keys_of_its_own() -> None:
    async with routed(1, api_keys=["k"], replica_api_key="inner", admin_api_key=None) as made:
        status, body = await made.ask()
        assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
        heads = {"X-Api-Key": "k"}
        async with made.session.get("/v1/any", headers=heads) as answer:
            assert answer.status == 200
        seen = made.replicas[0].seen[0][2]
        assert seen["Authorization"] == "Bearer inner" and "X-Api-Key" not in seen
        async with made.session.post("/drain", headers=heads) as answer:
            assert answer.status == 404


async def test_bodies_are_bounded() -> None:
    async with routed(1, max_body_bytes=1000, max_held_bytes=1500) as made:
        assert (await made.ask(prompt="x" * 2000))[0] == 413
        gate = asyncio.Event()
        made.replicas[0].answer = stuck(made.replicas[0], gate)
        first = asyncio.create_task(made.ask(prompt="x" * 900))
        await made.until(lambda: asked_of(made) == [1])
        assert (await made.ask(prompt="x" * 900))[0] == 503
        gate.set()
        assert (await first)[0] == 200
        assert (await made.ask(prompt="x" * 900))[0] == 200


async def test_answers_that_do_not_say_their_length_are_bounded() -> None:
    """As they come: of two at once only one has room."""
    gate, come = asyncio.Event(), asyncio.Event()

    async def in_parts(request: web.Request, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b'"' + b"x" * 2000)
        come.set()
        await gate.wait()
        await response.write(b'"')
        return response

    async with routed(1, max_held_bytes=3000) as made:
        made.replicas[0].answer = in_parts
        first = asyncio.create_task(made.ask())
        await come.wait()
        held = made.router._proxy._held
        await made.until(lambda: held._left < 1000)
        assert (await made.ask())[0] == 503
        gate.set()
        assert len((await first)[1]) == 2002
        assert (await made.ask())[0] == 200 and held._left == 3000


async def test_a_body_that_does_not_come_is_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "BODY_S", 0.05)
    heads = {"Content-Length": "900", "Authorization": "Bearer admin"}
    async with routed(1, max_held_bytes=1000) as made:
        for path in ("/v1/completions", "/drain"):

            async def stalls() -> AsyncIterator[bytes]:
                yield b"x" * 800
                await asyncio.Event().wait()

            async with made.session.post(path, data=stalls(), headers=heads) as answer:
                assert (answer.status, answer.headers["Connection"]) == (408, "close")
                assert (await answer.json())["error"]["type"] == "timeout_error"
        assert (await made.ask(prompt="x" * 900))[0] == 200, "all that was held is given back"


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"Content-Encoding: gzip", "malformed"),
        (b"Idempotency-Key: J\xf6rg", "Idempotency-Key"),
    ],
)
async def test_what_cannot_be_read_is_an_error_of_the_api(head: bytes, told: str) -> None:
    async with routed(1) as made:
        base = made.session._base_url
        assert base is not None
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n%s\r\nContent-Length: 2\r\n" % head)
        writer.write(b"Connection: close\r\n\r\n{}")
        async with asyncio.timeout(20):
            first, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 400 ") and told in json.loads(body)["error"]["message"]
        writer.close()
        assert made.replicas[0].seen == [] and (await made.ask())[0] == 200


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"])
async def test_a_connection_without_a_request_is_not_kept(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a head has begun, and does not end."""
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.05)
    async with routed(1) as made:
        base = made.session._base_url
        assert base is not None
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(sent)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
