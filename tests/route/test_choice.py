"""Which replica is asked: where a prompt begins alike, a key or a session goes, a model or a response is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from tests.support.routers import STREAM, Answer, asked_of, breaks_off, routed, status


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


async def test_a_session_of_a_header_goes_to_one_replica() -> None:
    """As vLLM has it; the body's label goes before it."""
    async with routed(3) as made:
        for index in range(6):
            body = {"prompt": f"{index}" * 999, **({"session_id": "s"} if index % 2 else {})}
            heads = {"X-Session-ID": "other" if index % 2 else "s"}
            await (await made.session.post("/v1/completions", json=body, headers=heads)).read()
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
        for path in ("/v1/responses/resp_1", "/responses/resp_1", "/v1/conversations/conv_1/items"):
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
