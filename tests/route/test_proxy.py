"""The router before replicas that tests play: who is asked and who next, what is passed on, what goes on elsewhere."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import aiohappyeyeballs
import aiohttp
import pytest
from aiohttp import web

from actorserve.actors.route import errors, server, upstream
from tests.support.routers import END, Answer, FakeReplica, Routed, breaks_off, event, routed, status, stream

STREAM: dict[str, Any] = {"stream": True}


def asked_of(routed: Routed) -> list[int]:
    """How many requests each replica has had."""
    return [len(replica.seen) for replica in routed.replicas]


# --- whole answers -------------------------------------------------------------------------------------------------


async def test_a_request_goes_through_with_its_heads() -> None:
    async with routed(1) as made:
        made.replicas[0].answer = status(418, X_Of_Replica="1", X_Actorserve_Origin="hidden", Retry_After="7")
        heads = {"X-Request-Id": "mine", "Authorization": "Bearer k", "X-Actorserve-Trail": "1", "Connection": "x-hop"}
        async with made.session.put("/any/path?a=b%20c", data=b"\x00raw", headers={**heads, "X-Hop": "1"}) as answer:
            assert (answer.status, answer.headers["X-Of-Replica"], answer.headers["Retry-After"]) == (418, "1", "7")
            assert "X-Actorserve-Origin" not in answer.headers
        method, path, seen, body = made.replicas[0].seen[0]
        assert (method, path, body) == ("PUT", "/any/path?a=b%20c", b"\x00raw")
        assert (seen["X-Request-Id"], seen["Authorization"]) == ("mine", "Bearer k")
        assert seen["X-Forwarded-For"] == "127.0.0.1"
        assert "X-Actorserve-Trail" not in seen and "X-Hop" not in seen


@pytest.mark.parametrize("failure", [breaks_off, status(502), status(503), status(504)])
async def test_who_cannot_answer_is_not_the_last_to_be_asked(failure: Answer) -> None:
    async with routed() as made:
        made.replicas[0].answer = failure
        for _ in range(4):
            assert await made.ask() == (200, b'{"by": "b"}')
        assert asked_of(made)[1] == 4


async def test_what_all_refuse_is_told_as_the_last_has_said_it() -> None:
    async with routed() as made:
        for replica in made.replicas:
            replica.answer = status(503, Retry_After="9")
        code, body = await made.ask()
        assert (code, json.loads(body)) == (503, {"error": {"code": 503}})
        assert asked_of(made) == [1, 1]


@pytest.mark.parametrize("code", [400, 404, 422, 429, 500, 501])
async def test_what_a_replica_means_is_not_asked_again(code: int) -> None:
    async with routed() as made:
        for replica in made.replicas:
            replica.answer = status(code)
        assert (await made.ask())[0] == code
        assert sum(asked_of(made)) == 1


async def test_a_request_of_which_replicas_die_is_not_tried_for_ever() -> None:
    async with routed(3, retries=1) as made:
        for replica in made.replicas:
            replica.answer = breaks_off
        code, body = await made.ask()
        assert code == 503 and "No replica" in json.loads(body)["error"]["message"]
        assert sum(asked_of(made)) == 2


async def test_after_errors_in_a_row_a_replica_is_left_alone() -> None:
    async with routed() as made:
        made.replicas[0].answer = status(500)
        codes = [(await made.ask(prompt=str(index)))[0] for index in range(12)]
        assert codes.count(500) == 3 == asked_of(made)[0]


async def test_a_request_waits_no_longer_than_the_breaker() -> None:
    async with routed(1, breaker_errors=1, breaker_seconds=0.2, patience=25.0) as made:
        made.replicas[0].answer = status(500)
        assert (await made.ask())[0] == 500
        made.replicas[0].answer = made.replicas[0].named
        began = time.monotonic()
        assert (await made.ask())[0] == 200
        assert time.monotonic() - began < 20


async def test_a_frozen_replica_is_seen_and_its_whole_answers_are_had_elsewhere() -> None:
    async with routed(detection_limit=3.0) as made:
        gate = asyncio.Event()
        for replica in made.replicas:
            replica.answer = stuck(replica, gate)
        waiting = asyncio.create_task(made.ask())
        await made.until(lambda: sum(asked_of(made)) == 1)
        first = asked_of(made).index(1)
        thawed = made.replicas[first].frozen = asyncio.Event()
        other = made.replicas[1 - first]
        other.answer = other.named
        assert await waiting == (200, json.dumps({"by": other.name}).encode())
        thawed.set()
        made.replicas[first].frozen = None
        gate.set()
        await made.until(lambda: all(one.is_up for one in made.router.fleet.replicas))


def stuck(replica: FakeReplica, gate: asyncio.Event) -> Answer:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        await gate.wait()
        return await replica.named(request, body)

    return answer


# --- streams -------------------------------------------------------------------------------------------------------


async def test_a_stream_goes_through_without_its_trail() -> None:
    async with routed(1) as made:
        made.replicas[0].answer = stream(b":t b\n\n", event("one", 3, 1, 5), b": keep-alive\n\n:t k\n\n", END)
        assert await made.ask(**STREAM) == (200, b'data: "one"\n\n: keep-alive\n\ndata: [DONE]\n\n')
        assert made.replicas[0].seen[0][2]["X-Actorserve-Trail"] == "1"


@pytest.mark.parametrize("rest", [b"", b'data: "tw', event("two", 6, 2, 6)[:-3]])
async def test_a_stream_that_breaks_off_goes_on_elsewhere(rest: bytes) -> None:
    async with routed() as made:
        for replica in made.replicas:
            replica.answer = goes_on_from(b":t b\n\n", event("one", 3, 1, 5), rest)
        code, body = await made.ask(**STREAM, n=1)
        assert (code, body) == (200, b'data: "one"\n\ndata: "two"\n\ndata: [DONE]\n\n')
        paths = [seen[1] for replica in made.replicas for seen in replica.seen]
        assert sorted(paths) == ["/go_on", "/v1/completions"]
        asked = next(json.loads(seen[3]) for one in made.replicas for seen in one.seen if seen[1] == "/go_on")
        assert asked["choices"] == [{"characters": 3, "ended": False, "tokens": [5]}]
        assert (asked["path"], asked["begun"], asked["request_id"]) == ("/v1/completions", True, "named")
        assert json.loads(asked["body"])["prompt"] == "x"


def goes_on_from(*pieces: bytes) -> Answer:
    """Breaks off behind these; goes on with the rest."""

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        if request.path == "/go_on":
            return await stream(event("two", 6, 2, 6), END)(request, body)
        return await stream(*pieces, breaks=True)(request, body)

    return answer


async def test_what_stands_before_a_torn_trail_in_one_read_is_the_clients() -> None:
    """The replica that goes on is told of its tokens."""
    async with routed() as made:
        for replica in made.replicas:
            replica.answer = goes_on_from(b":t b\n\n" + event("one", 3, 1, 5) + b'data: "x"\n\n:t no trail\n\n')
        assert await made.ask(**STREAM) == (200, b'data: "one"\n\ndata: "two"\n\ndata: [DONE]\n\n')


async def test_a_stream_that_gets_on_may_move_as_often_as_it_has_to() -> None:
    async with routed(retries=1) as made:

        async def one_more(request: web.Request, body: bytes) -> web.StreamResponse:
            tokens = len(json.loads(body)["choices"][0]["tokens"]) if request.path == "/go_on" else 0
            if tokens == 6:
                return await stream(END)(request, body)
            return await stream(event(str(tokens), tokens + 1, tokens + 1, 5), breaks=True)(request, body)

        for replica in made.replicas:
            replica.answer = one_more
        texts = "".join(f'data: "{index}"\n\n' for index in range(6))
        assert await made.ask(**STREAM) == (200, f"{texts}data: [DONE]\n\n".encode())


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("probe_interval", [0.02, 0.5])
async def test_what_breaks_off_waits_for_a_replica_that_comes_back(streams: bool, probe_interval: float) -> None:
    """Whether or not the router has looked since its death, which takes no time: it is not asked over and over again
    while nobody listens there.
    """
    async with routed(1, probe_interval=probe_interval) as made:
        (replica,) = made.replicas
        port = int(replica.address.rpartition(":")[2])

        async def dies(request: web.Request, body: bytes) -> web.StreamResponse:
            replica.answer = goes_on_from() if streams else replica.named
            await replica.no_more()
            if not streams:
                return await breaks_off(request, body)
            return await stream(event("one", 3, 1, 5), breaks=True)(request, body)

        replica.answer = dies
        waiting = asyncio.create_task(made.ask(stream=streams))
        await made.until(lambda: not made.router.fleet.replicas[0].is_up)
        await replica.stop()
        await replica.start(port)
        code, body = await waiting
        assert code == 200 and body.endswith(b'data: "two"\n\ndata: [DONE]\n\n' if streams else b'{"by": "a"}')


@pytest.mark.parametrize("code", [429, 503])
async def test_a_stream_waits_for_replicas_that_are_busy(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked when they say so, and no try is used up."""
    monkeypatch.setattr(upstream, "LEAST_PAUSE_S", 0.01)
    async with routed(retries=1) as made:
        refused = 0

        async def busy(request: web.Request, body: bytes) -> web.StreamResponse:
            nonlocal refused
            if request.path == "/go_on" and refused < 6:
                refused += 1
                return await status(code, Retry_After="0")(request, body)
            return await goes_on_from(event("one", 3, 1, 5))(request, body)

        for replica in made.replicas:
            replica.answer = busy
        assert await made.ask(**STREAM) == (200, b'data: "one"\n\ndata: "two"\n\ndata: [DONE]\n\n')
        assert refused == 6


async def test_a_stream_does_not_wait_longer_than_patience() -> None:
    """Nobody is asked again before the time that it has said."""
    async with routed(patience=0.2) as made:

        async def busy(request: web.Request, body: bytes) -> web.StreamResponse:
            if request.path == "/go_on":
                return await status(503, Retry_After="30")(request, body)
            return await goes_on_from(event("one", 3, 1, 5))(request, body)

        for replica in made.replicas:
            replica.answer = busy
        code, body = await made.ask(**STREAM)
        assert code == 200 and b'"server_lost"' in body
        rest = [[seen[1] for seen in one.seen].count("/go_on") for one in made.replicas]
        assert sum(rest) > 0 and max(rest) == 1, "each of them once at most"


async def test_a_client_that_leaves_ends_the_request_at_its_replica() -> None:
    async with routed(1) as made:
        ended = asyncio.Event()

        async def endless(request: web.Request, body: bytes) -> web.StreamResponse:
            try:
                return await stream(event("one", 3, 1, 5), gate=asyncio.Event())(request, body)
            finally:
                ended.set()

        made.replicas[0].answer = endless
        response = await made.session.post("/v1/completions", json={"prompt": "x", **STREAM})
        assert await response.content.readany() == b'data: "one"\n\n'
        response.close()
        await asyncio.wait_for(ended.wait(), 20)
        await made.until(lambda: made.router.in_flight == 0)
        assert len(made.replicas[0].seen) == 1


# --- what looks find -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EHOSTUNREACH, errno.ENETUNREACH])
async def test_streams_of_a_replica_to_which_no_way_leads_go_on_elsewhere(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine is gone: no connection breaks off."""
    cut_off = set[int]()
    connect = aiohappyeyeballs.start_connection

    async def connected(addr_infos: Any, **options: Any) -> socket.socket:
        if addr_infos[0][4][1] in cut_off:
            raise OSError(code, os.strerror(code))
        return await connect(addr_infos, **options)

    monkeypatch.setattr("aiohttp.connector.aiohappyeyeballs.start_connection", connected)
    async with routed(detection_limit=0.5) as made:
        gate = asyncio.Event()

        async def stands_still(request: web.Request, body: bytes) -> web.StreamResponse:
            if request.path == "/go_on":
                return await stream(event("two", 6, 2, 6), END)(request, body)
            return await stream(event("one", 3, 1, 5), gate=gate)(request, body)

        for replica in made.replicas:
            replica.answer = stands_still
        response = await made.session.post("/v1/completions", json={"prompt": "x", **STREAM})
        assert await response.content.readany() == b'data: "one"\n\n'
        first = asked_of(made).index(1)
        cut_off.add(int(made.replicas[first].address.rpartition(":")[2]))
        assert (await response.read()).endswith(b'data: "two"\n\ndata: [DONE]\n\n')
        assert made.router.fleet.replicas[first].state == "not reachable"
        gate.set()


async def test_looks_go_on_whatever_a_replica_says_of_itself() -> None:
    """JSON nested too deeply to be read ended the router."""
    async with routed(1) as made:
        (replica,) = made.router.fleet.replicas
        made.replicas[0].load = b'{"server_load": %s' % (b"[" * 100_000)
        await made.until(lambda: not replica.is_up)
        assert not made.running.done()
        made.replicas[0].load = b"{}"
        await made.until(lambda: replica.is_up)


# --- no open files -------------------------------------------------------------------------------------------------


@contextmanager
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The router can open no connection; those that are there go on."""

    async def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("aiohttp.connector.aiohappyeyeballs.start_connection", none_left)
        yield


async def test_no_open_files_are_no_replicas_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a request nor a look at a replica that cannot be says anything of it."""
    async with routed(detection_limit=0.3, probe_interval=0.02) as made:
        replicas = made.router.fleet.replicas
        async with made.session.get("/health") as answer:  # a connection that is kept
            assert answer.status == 200
        with no_sockets(monkeypatch):
            code, body = await made.ask()
            assert code == 503 and "open files" in json.loads(body)["error"]["message"]
            ends = time.monotonic() + 2 * 0.3
            await made.until(lambda: time.monotonic() > ends)
            assert all(replica.is_up and replica.is_proved for replica in replicas)
            looks = [replica.heard_at for replica in replicas]
        assert (await made.ask())[0] == 200
        await made.until(lambda: all(one.heard_at > at for one, at in zip(replicas, looks, strict=True)))


async def test_a_stream_waits_for_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "PAUSE_S", 0.01)
    async with routed(retries=1) as made:
        gate = asyncio.Event()

        async def breaks_later(request: web.Request, body: bytes) -> web.StreamResponse:
            if request.path == "/go_on":
                return await stream(event("two", 6, 2, 6), END)(request, body)
            return await stream(event("one", 3, 1, 5), gate=gate, breaks=True)(request, body)

        for replica in made.replicas:
            replica.answer = breaks_later
        response = await made.session.post("/v1/completions", json={"prompt": "x", **STREAM})
        assert await response.content.readany() == b'data: "one"\n\n'
        moves = made.router.metrics.moves.labels("no open files are left")
        with no_sockets(monkeypatch):
            gate.set()
            await made.until(lambda: moves._value.get() > 3)  # more than there are tries
        assert (await response.read()).endswith(b'data: "two"\n\ndata: [DONE]\n\n')


# --- who is asked --------------------------------------------------------------------------------------------------


async def test_prompts_go_where_they_begin_alike() -> None:
    async with routed(3) as made:
        prompts = [letter * 3000 for letter in "abcdefghi"]
        for _ in range(4):
            for prompt in prompts:
                await made.ask(prompt=prompt + str(_))
        for replica in made.replicas:
            begins = {json.loads(seen[3])["prompt"][0] for seen in replica.seen}
            assert len(replica.seen) == 4 * len(begins) == 12


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "Application/JSON"])
async def test_json_is_understood_whatever_it_is_called(kind: str) -> None:
    """As `curl -d` calls it: its replica is asked for the trail by which another one goes on."""
    async with routed(1) as made:
        body = json.dumps({"model": "tiny", "prompt": "x", **STREAM})
        async with made.session.post("/v1/completions", data=body, headers={"Content-Type": kind}) as answer:
            assert answer.status == 200
        assert made.replicas[0].seen[0][2]["X-Actorserve-Trail"] == "1"


async def test_a_key_goes_to_one_replica() -> None:
    async with routed(3) as made:
        for index in range(6):
            heads = {"Idempotency-Key": "same"}
            await (await made.session.post("/v1/completions", json={"prompt": f"{index}" * 999}, headers=heads)).read()
        assert sorted(asked_of(made)) == [0, 0, 6]


@pytest.mark.parametrize("path", ["/v1/completions", "/close_session"])
async def test_a_session_goes_to_one_replica(path: str) -> None:
    """By the label that any request may have, and by the session whose tokens one replica alone keeps."""
    bodies: list[dict[str, Any]] = [{"session_id": "s"}, {"session_params": {"id": "s"}, "session_id": "other"}]
    async with routed(3) as made:
        for index in range(6):
            body = {"prompt": f"{index}" * 999, **bodies[index % 2]}
            await (await made.session.post(path, json=body)).read()
        assert sorted(asked_of(made)) == [0, 0, 6]


async def test_a_model_is_asked_for_where_it_is() -> None:
    async with routed() as made:
        made.replicas[0].models = ["other"]
        made.router.fleet.replicas[0].models = frozenset(["other"])
        for _ in range(3):
            await made.ask(model="other")
        assert asked_of(made) == [3, 0]
        assert (await made.ask(model="nobody"))[0] == 200  # that it is not there, a replica says


FIRST = {"type": "item_reference", "id": "msg_1"}


@pytest.mark.parametrize("more", [{"previous_response_id": "resp_1"}, {"input": [FIRST]}])
@pytest.mark.parametrize(("code", "said"), [(404, "not_found"), (400, "previous_response_not_found")])
async def test_what_goes_on_from_a_response_is_asked_where_that_is_kept(
    more: dict[str, Any], code: int, said: str
) -> None:
    async with routed() as made:
        made.replicas[0].answer = refusal(code, said)
        for path in ("/v1/responses", "/responses"):
            for _ in range(2):
                async with made.session.post(path, json={"model": "m", "input": "a", **more}) as answer:
                    assert (answer.status, await answer.json()) == (200, {"by": "b"})
        made.replicas[1].answer = refusal(code, said)
        async with made.session.post("/v1/responses", json={"model": "m", "input": "a", **more}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (code, said)
        made.replicas[0].answer = refusal(400, "else")  # which says no more than that it is wrong
        async with made.session.post("/v1/responses", json={"model": "m", "input": "a", **more}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (400, "else")


def refusal(code: int, said: str) -> Answer:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no", "code": said}}, status=code)

    return answer


async def test_a_response_is_found_where_it_is_kept() -> None:
    async with routed() as made:
        made.replicas[0].answer = status(404)
        for path in ("/v1/responses/resp_1", "/responses/resp_1"):
            async with made.session.get(path) as answer:
                assert await answer.json() == {"by": "b"}
        made.replicas[1].answer = status(404)
        async with made.session.delete("/v1/responses/resp_1") as answer:
            assert answer.status == 404


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("failure", [status(503, Retry_After="9"), breaks_off])
async def test_that_others_do_not_keep_it_does_not_hide_a_failure(first: int, failure: Answer) -> None:
    """A client that is told 404 gives up what is there still."""
    async with routed() as made:
        made.replicas[first].answer, made.replicas[1 - first].answer = failure, status(404)
        async with made.session.get("/v1/responses/resp_1") as answer:
            assert answer.status == 503 and int(answer.headers["Retry-After"]) > 0


# --- its own paths, keys and bounds ----------------------------------------------------------------------------------


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

        async def begins(request: web.Request, body: bytes) -> web.StreamResponse:
            if request.path == "/go_on":
                return await stream(event("two", 6, 2, 6), END)(request, body)
            return await stream(event("one", 3, 1, 5), gate=gate)(request, body)

        for replica in made.replicas:
            replica.answer = begins
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


async def test_a_web_socket_is_had_of_a_replica_that_is_there() -> None:
    """The others have died since the last look, or cannot take it."""

    async def greet(request: web.Request, body: bytes) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("hello")
        await socket.close()
        return socket

    async with routed(3, probe_interval=20.0) as made:
        await made.replicas[0].no_more()
        made.replicas[1].answer, made.replicas[2].answer = status(503), greet
        for _ in range(3):
            async with made.session.ws_connect("/v1/realtime?model=tiny") as socket:
                assert await socket.receive_str() == "hello"


async def test_web_sockets_go_through_and_end_with_either_side() -> None:
    async def echo(request: web.Request, body: bytes) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("realtime",))
        await socket.prepare(request)
        async for message in socket:
            if message.data == "end":
                await socket.close(code=4001)
            else:
                await (socket.send_str if isinstance(message.data, str) else socket.send_bytes)(message.data)
        return socket

    async with routed(1) as made:
        made.replicas[0].answer = echo
        async with made.session.ws_connect("/v1/realtime?model=tiny", protocols=("realtime",)) as socket:
            assert socket.protocol == "realtime"
            await socket.send_str("one")
            await socket.send_bytes(b"\x01")
            assert (await socket.receive_str(), await socket.receive_bytes()) == ("one", b"\x01")
            await socket.send_str("end")
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE and socket.close_code == 4001
        made.replicas[0].answer = status(403)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await made.session.ws_connect("/v1/realtime")
        assert refused.value.status == 403


@pytest.mark.parametrize("resets", [True, False])
async def test_a_web_socket_whose_replica_dies_says_so(resets: bool) -> None:
    async def dies(request: web.Request, body: bytes) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("hello")
        assert request.transport is not None
        if resets:
            request.transport.abort()
        else:
            request.transport.close()
        return socket

    async with routed(1) as made:
        made.replicas[0].answer = dies
        async with made.session.ws_connect("/v1/realtime") as socket:
            assert await socket.receive_str() == "hello"
            assert (await socket.receive(20)).type is aiohttp.WSMsgType.CLOSE and socket.close_code == 1012


async def test_a_replica_is_told_that_the_client_of_a_web_socket_is_gone() -> None:
    ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def listens(request: web.Request, body: bytes) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("hello")
        await socket.receive()
        ended.set_result(socket.close_code)
        return socket

    async with routed(1) as made:
        made.replicas[0].answer = listens
        socket = await made.session.ws_connect("/v1/realtime")
        assert await socket.receive_str() == "hello"
        assert socket._response.connection is not None and socket._response.connection.transport is not None
        socket._response.connection.transport.abort()
        assert await asyncio.wait_for(ended, 20) == 1001
