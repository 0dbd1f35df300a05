"""The router before replicas that tests play: who is asked and who next, what is passed on, what goes on elsewhere."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from aiohttp import web

from actorserve.actors.route import upstream
from tests.support.routers import (
    END,
    STREAM,
    Answer,
    asked_of,
    breaks_off,
    event,
    goes_on_from,
    held,
    routed,
    status,
    stream,
    stuck,
)

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


@pytest.mark.parametrize("told", [b"", event("one", 3, 1, 5), event("one", 3, 1, 5) + b":t b\n\n"])
async def test_what_a_client_goes_on_with_moves_once_its_trail_is_whole(told: bytes) -> None:
    """Before that another replica would begin anew."""
    async with routed() as made:
        for replica in made.replicas:
            replica.answer = goes_on_from(told)
        heads = {"Idempotency-Key": "k", "Last-Event-ID": "3-1"}
        fields = {"model": "tiny", "prompt": "x", "stream": True}
        async with made.session.post("/v1/completions", json=fields, headers=heads) as answer:
            body = await answer.read()
        moved = b":t b" in told
        assert (b'data: "two"\n\ndata: [DONE]\n\n' in body) == moved and (b"server_lost" in body) != moved
        assert sum(asked_of(made)) == 1 + moved


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

        async def dies(request: web.Request, body: bytes) -> web.StreamResponse:
            replica.answer = goes_on_from() if streams else replica.named
            await replica.no_more()
            if not streams:
                return await breaks_off(request, body)
            return await stream(event("one", 3, 1, 5), breaks=True)(request, body)

        replica.answer = dies
        with held(replica) as port:
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
