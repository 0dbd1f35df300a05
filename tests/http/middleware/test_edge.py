"""What stands before the routes: administration, other sites' pages, slow heads, the headers of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from actorserve.http.middleware import edge
from actorserve.http.paths.dialects.llamacpp import LLAMACPP
from actorserve.http.routes import ADMIN_PATHS, UNBUILT_PATHS
from actorserve.http.transport import header_timeout as heads
from tests.http import serving as serving_module
from tests.http.fakes import finish_all
from tests.http.serving import Answer, Served, serving

PAGE = "https://chat.example.com"
EXPOSED = "X-Request-Id, Request-Id, Idempotent-Replayed, Retry-After, x-ratelimit-limit-requests"

# --- administration ------------------------------------------------------------------------------------------------

LLAMACPP_PATHS = {route.path for route in LLAMACPP}  # whose errors have numbers for codes


def code_and_message(path: str, answer: Answer) -> tuple[str | int, str]:
    """Of an error in the form that the path has."""
    if path not in LLAMACPP_PATHS:
        return answer.error["code"], answer.error["message"]
    error = answer.json["error"]
    assert set(error) == {"code", "message", "type"}
    return error["code"], error["message"]


@pytest.mark.parametrize("keys", [[], ["one"]])
async def test_without_its_option_there_is_no_administration(keys: list[str]) -> None:
    async with serving(api_keys=keys) as served:
        for path in ADMIN_PATHS:
            for headers in ({}, {"Authorization": "Bearer one"}, {"X_Api_Key": ""}):
                answer = await served.ask("POST", path, b"{}", **headers)
                assert answer.status == 404
                code, said = code_and_message(path, answer)
                why = "" if path in UNBUILT_PATHS else ". It is there with --admin-api-key."
                assert said == f"Not Found: POST {path}{why}"
                assert code == (404 if path in LLAMACPP_PATHS else "unknown_url")


@pytest.mark.parametrize("keys", [[], ["one"]])
async def test_administration_has_a_key_of_its_own(keys: list[str]) -> None:
    async with serving(api_keys=keys, admin_api_key="master") as served:
        for path in ADMIN_PATHS:
            for headers in ({}, {"Authorization": "Bearer two"}, {"X_Api_Key": ""}):
                answer = await served.ask("POST", path, b"{}", **headers)
                code = 401 if path in LLAMACPP_PATHS else "invalid_api_key"
                assert answer.status == 401 and code_and_message(path, answer)[0] == code
            answer = await served.ask("GET", path, Authorization="Bearer one")
            assert answer.status == (403 if keys else 401), "it is a key, but not this one"
        for path in UNBUILT_PATHS:
            answer = await served.ask("POST", path, b"{}", Authorization="Bearer master")
            assert answer.status == 501 and "is not built yet" in answer.error["message"]
            assert (await served.ask("GET", path, X_Api_Key="master")).status == 501


async def test_what_is_built_is_asked_behind_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router is: nothing of this name stands there."""
    monkeypatch.setattr(edge, "UNBUILT_PATHS", frozenset())
    monkeypatch.setattr(edge, "ADMIN_PATHS", frozenset({"/new"}))
    async with serving(api_keys=["one"], admin_api_key="master") as served:
        for key, status in (("master", 404), ("one", 403), ("two", 401)):
            answer = await served.ask("POST", "/new", b"{}", X_Api_Key=key)
            assert answer.status == status, key
    async with serving(api_keys=["one"]) as served:
        assert (await served.ask("POST", "/new", b"{}", X_Api_Key="one")).status == 404


async def test_the_key_of_administration_opens_nothing_else() -> None:
    async with serving(api_keys=["one"], admin_api_key="master") as served:
        assert (await served.ask("GET", "/v1/models", X_Api_Key="master")).status == 401
        assert (await served.ask("GET", "/v1/models", X_Api_Key="one")).status == 200
    async with serving(admin_api_key="master") as served:
        assert (await served.ask("GET", "/v1/models")).status == 200


# --- other sites' pages --------------------------------------------------------------------------------------------


async def preflight(served: Served, origin: str = PAGE, method: str = "POST", headers: str = "") -> Answer:
    more = {"Access_Control_Request_Headers": headers} if headers else {}
    client = await served.client()
    client.send("OPTIONS", "/v1/completions", Origin=origin, Access_Control_Request_Method=method, **more)
    return await client.head()


async def test_cookies_are_for_named_sites() -> None:
    async with serving(allowed_origins=(PAGE,), allow_credentials=True) as served:
        for answer in (await preflight(served), await served.ask("GET", "/v1/models", Origin=PAGE)):
            assert answer.headers["access-control-allow-credentials"] == "true"
            assert answer.headers["access-control-allow-origin"] == PAGE
        other = await served.ask("GET", "/v1/models", Origin="https://other.example")
        assert "access-control-allow-credentials" not in other.headers


async def test_pages_of_all_sites_are_the_default() -> None:
    """Also where there are keys, which no browser sends before it has asked."""
    async with serving(api_keys=["one"]) as served:
        answer = await preflight(served, headers="authorization, content-type, x-stainless-os")
        assert answer.status == 204 and "content-type" not in answer.headers
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "POST" in answer.headers["access-control-allow-methods"].split(", ")
        assert answer.headers["access-control-allow-headers"] == "authorization, content-type, x-stainless-os"
        assert "access-control-allow-credentials" not in answer.headers
        assert "Origin" not in answer.headers["vary"].split(", ")
        assert "access-control-allow-headers" not in (await preflight(served)).headers
        for key, status in (("one", 200), ("two", 401)):
            answer = await served.ask("GET", "/v1/models", Origin=PAGE, X_Api_Key=key)
            assert answer.status == status and answer.headers["access-control-allow-origin"] == "*"
            assert answer.headers["access-control-expose-headers"].startswith(EXPOSED) and "vary" not in answer.headers


async def test_a_request_that_is_of_no_page_gets_no_headers_of_the_kind(served: Served) -> None:
    answer = await served.ask("GET", "/v1/models")
    assert not [name for name in answer.headers if name.startswith("access-control-") or name == "vary"]


async def test_some_sites_only() -> None:
    async with serving(allowed_origins=(PAGE, "null")) as served:
        for origin in (PAGE, "null"):
            answer = await preflight(served, origin)
            assert answer.status == 204 and answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["vary"] == "Access-Control-Request-Headers, Origin"
        for origin in ("https://evil.example.com", PAGE + ".evil.com", "http://chat.example.com", PAGE.upper()):
            answer = await preflight(served, origin)
            assert answer.status == 403 and "access-control-allow-origin" not in answer.headers
            answer = await served.ask("GET", "/v1/models", Origin=origin)
            assert answer.status == 200 and "access-control-allow-origin" not in answer.headers
            assert answer.headers["vary"] == "Origin", "an answer that is kept somewhere is not for everybody"
        assert (await served.ask("GET", "/v1/models")).headers["vary"] == "Origin"


LOCAL = ("http://localhost", "https://localhost:8443", "http://127.0.0.1:3000", "http://[::1]:3000")
ELSEWHERE = ("http://notlocalhost", "http://localhost.evil.com", "http://127.0.0.1.evil.com", "null")


async def test_pages_of_the_browsers_own_machine() -> None:
    async with serving(allowed_origins=("localhost", PAGE)) as served:
        for origin in (*LOCAL, PAGE):
            answer = await preflight(served, origin)
            assert answer.status == 204 and answer.headers["access-control-allow-origin"] == origin
        for origin in ELSEWHERE:
            answer = await preflight(served, origin)
            assert answer.status == 403 and "access-control-allow-origin" not in answer.headers


async def test_methods_and_headers_that_are_named() -> None:
    async with serving(allowed_methods=("GET", "POST"), allowed_headers=("Authorization", "X-One")) as served:
        answer = await preflight(served, headers="x-two")
        assert answer.headers["access-control-allow-methods"] == "GET, POST"
        assert answer.headers["access-control-allow-headers"] == "Authorization, X-One"


async def test_streams_and_errors_may_be_read_by_pages() -> None:
    async with serving(allowed_origins=(PAGE,)) as served:
        client = await served.client()
        client.send("POST", "/v1/completions", {"prompt": "hi", "stream": True}, Origin=PAGE)
        finish_all(await served.job())
        answers = [await client.answer()]
        assert answers[0].events[-1]["choices"][0]["text"] == "yes0"
        answers.append(await served.ask("POST", "/v1/completions", b"{", Origin=PAGE))
        answers.append(await served.ask("GET", "/nowhere", Origin=PAGE))
        assert [answer.status for answer in answers] == [200, 400, 404]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == PAGE and answer.headers["vary"] == "Origin"
            assert answer.headers["access-control-expose-headers"].startswith(EXPOSED)
            assert answer.headers["x-request-id"]


@pytest.mark.parametrize("headers", [{}, {"Origin": PAGE}, {"Access_Control_Request_Method": "POST"}])
async def test_options_that_are_no_preflight(served: Served, headers: dict[str, str]) -> None:
    assert (await served.ask("OPTIONS", "/v1/completions", **headers)).status == 405


async def test_what_is_echoed_breaks_no_header(served: Served) -> None:
    answer = await preflight(served, headers="a\tb\xff, c")
    assert answer.status == 204 and answer.headers["access-control-allow-headers"] == "ab, c"


async def test_anthropics_clients_find_the_id_where_they_look_for_it(served: Served) -> None:
    for path, name in (("/v1/messages", "a"), ("/v1/messages/count_tokens", "a"), ("/v1/responses", None)):
        answer = await served.ask("POST", path, b"{", X_Request_Id="a")
        assert (answer.headers["x-request-id"], answer.headers.get("request-id")) == ("a", name)


async def test_ids_of_requests_can_be_left_out() -> None:
    async with serving(request_id_headers=False) as served:
        for path in ("/health", "/nowhere", "/v1/messages"):
            answer = await served.ask("GET", path, X_Request_Id="a")
            assert not {"x-request-id", "request-id"} & answer.headers.keys()


# --- heads ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def timed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A server whose clients get a fifth of a second for a head."""
    monkeypatch.setattr(serving_module, "Connection", heads.TimedConnection)
    monkeypatch.setattr(heads, "HEAD_S", 0.2)
    async with serving() as served:
        yield served


@pytest.mark.parametrize("begun", [b"G", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
async def test_a_head_that_does_not_end(timed: Served, begun: bytes) -> None:
    client = await timed.client()
    client.raw(begun)
    answer = await client.answer()
    assert answer.status == 408 and answer.error["type"] == "timeout_error" and answer.headers["connection"] == "close"
    assert await client.is_closed()


async def test_a_head_that_comes_byte_by_byte(timed: Served) -> None:
    """Its clock is not set again by what comes."""
    client = await timed.client()

    async def trickle() -> None:
        client.raw(b"GET /health HTTP/1.1\r\n")
        while True:
            client.raw(b"a: b\r\n")
            await asyncio.sleep(0.01)  # a slow client

    task = asyncio.create_task(trickle())
    assert (await client.answer()).status == 408
    task.cancel()


async def test_who_says_nothing_is_told_nothing(timed: Served) -> None:
    client = await timed.client()
    assert await client.is_closed()


async def test_a_head_behind_an_answer(timed: Served) -> None:
    client = await timed.client()
    for _ in range(3):
        assert (await client.ask("GET", "/health")).status == 200
    client.raw(b"GET /hea")
    assert (await client.answer()).status == 408 and await client.is_closed()


@pytest.mark.parametrize("before", [0, 1])
async def test_a_head_that_is_too_long(timed: Served, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """Each of its lines may be. A body, and what comes behind it, are no part of it."""
    monkeypatch.setattr(heads, "HEAD_S", 60.0)
    client = await timed.client()
    for _ in range(before):
        client.send("POST", "/tokenize", b'{"prompt": "hi"}'.ljust(100_000))
        assert (await client.answer()).status == 200
    client.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n")
    for number in range(3):
        client.raw(b"h%d: %s\r\n" % (number, b"x" * 30_000))
    answer = await client.answer()
    assert answer.status == 431 and "65536 bytes" in answer.error["message"] and answer.headers["connection"] == "close"


async def test_neither_bodies_nor_answers_nor_rests_have_this_clock(
    timed: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes longer here."""
    monkeypatch.setattr(heads, "HEAD_S", 1.0)  # a busy machine needs some for the head itself
    client = await timed.client()
    client.send("POST", "/v1/completions", b'{"prompt": ', Content_Length="16")
    await asyncio.sleep(1.2)  # time passes, and nothing is to happen
    client.raw(b'"hi"}')
    job = await timed.job()
    client.raw(b"GET /health HTT")  # of the next request; its clock begins when it is its turn
    await asyncio.sleep(1.2)
    finish_all(job)
    assert (await client.answer()).json["choices"][0]["text"] == "yes0"
    client.raw(b"P/1.1\r\nHost: x\r\n\r\n")
    assert (await client.answer()).status == 200
    await asyncio.sleep(1.2)
    assert (await client.ask("GET", "/health")).status == 200
