"""What comes over the wire before a route sees it, whole or malformed: every answer is JSON, and the log stays calm."""

from __future__ import annotations

import asyncio
import gzip
import logging
from typing import Any

import msgspec
import pytest
from aiohttp import StreamReader, web

from actorserve.actors.protocol.request import Generation
from actorserve.http.transport import body as bodies
from actorserve.http.transport.connection import unknown_names
from tests.http.fakes import finish_all
from tests.http.serving import HI, Served, serving

MALFORMED: dict[str, bytes] = {
    "no HTTP": b"hello\r\n\r\n",
    "a method that is none": b"G@T / HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a1030300") + b"\r\n\r\n",
    "a wrong version": b"GET /health HTTP/9.x\r\nHost: a\r\n\r\n",
    "a header without colon": b"GET /health HTTP/1.1\r\nHost: a\r\nbroken\r\n\r\n",
    "a space in a header's name": b"GET /health HTTP/1.1\r\nHost: a\r\nbro ken: 1\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: a\r\nx: a\x00b\r\n\r\n",
    "a length that is none": b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    "a negative length": b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
    "length and chunks": (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "a long path": b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long header": b"GET /health HTTP/1.1\r\nHost: a\r\nx: " + b"a" * 40_000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"x: y\r\n" * 500 + b"\r\n",
}


async def test_an_aiohttp_without_what_connections_read_of_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = web.Server(lambda _: web.Response())  # type: ignore[arg-type, return-value]
    assert unknown_names(server) == []
    slots = [name for name in web.RequestHandler.__slots__ if name != "_waiter"]
    monkeypatch.setattr(web.RequestHandler, "__slots__", tuple(slots))
    del server._kwargs
    monkeypatch.delattr(web.StreamResponse, "_send_headers_immediately")
    names = ["RequestHandler._waiter", "Server._kwargs", "StreamResponse._send_headers_immediately"]
    assert unknown_names(server) == names


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request(served: Served, caplog: pytest.LogCaptureFixture, name: str) -> None:
    client = await served.client()
    client.raw(MALFORMED[name])
    answer = await client.answer()
    assert answer.status == 400 and answer.error["type"] == "invalid_request_error"
    assert answer.error["message"].startswith("The request is malformed: ") and "\n" not in answer.error["message"]
    assert await client.is_closed()
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert (await served.ask("GET", "/health")).status == 200, "others go on"


async def test_a_chunked_body_that_is_malformed(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", b"xyz\r\n", Transfer_Encoding="chunked")
    answer = await client.answer()
    assert answer.status == 400 and "malformed" in answer.error["message"]
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def test_a_chunked_body_that_breaks_later(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp does not tell the handler that waits for more: it is over when a body must have come."""
    monkeypatch.setattr(bodies, "BODY_S", 0.2)
    client = await served.client()
    client.send("POST", "/v1/completions", b'5\r\n{"a":\r\n', Transfer_Encoding="chunked")
    await client.writer.drain()
    await served.ask("GET", "/health")
    client.raw(b"xyz\r\n")
    assert (await client.answer()).status in (400, 408) and served.engine.jobs.empty()


@pytest.mark.parametrize(("way", "sent"), [("read_nowait", b"2\r\n{}\r\n0\r\n\r\n"), ("iter_any", b"2\r\n{}\r\n")])
async def test_what_the_parser_finds_wrong_with_a_body(
    served: Served, monkeypatch: pytest.MonkeyPatch, way: str, sent: bytes
) -> None:
    """aiohttp's parser in Python tells the handler, whether all of the body is there or not; the one in C does not."""

    def broken(*_: object) -> None:
        raise web.RequestPayloadError("a chunk without a size")

    monkeypatch.setattr(StreamReader, way, broken)
    client = await served.client()
    client.send("POST", "/v1/completions", sent, Transfer_Encoding="chunked")
    answer = await client.answer()
    assert answer.status == 400 and answer.error["message"] == "The body is malformed: a chunk without a size"


# --- keep-alive, pipelining, versions ------------------------------------------------------------------------------


async def test_several_requests_on_one_connection(served: Served) -> None:
    client = await served.client()
    for turn in range(3):
        client.send("POST", "/v1/completions", {"prompt": "hi", "stream": turn == 1})
        finish_all(await served.job())
        answer = await client.answer()
        assert answer.status == 200 and "connection" not in answer.headers
        assert (await client.ask("POST", "/v1/completions", {"prompt": 5})).status == 400
        assert (await client.ask("GET", "/nowhere")).status == 404
        assert (await client.ask("POST", "/nowhere", b"a" * 50_000)).status == 404, "an unread body"


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    client = await served.client()
    for name in "abc":
        client.send("POST", "/v1/completions", {"prompt": name, "stream": name == "b"})
    client.send("GET", "/v1/models")
    for _ in "abc":
        job = await served.job()
        (prompt,) = job.prompts
        finish_all(job, getattr(prompt, "text", ""))
    answers = [await client.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert answers[0].json["choices"][0]["text"] == "a0" and answers[2].json["choices"][0]["text"] == "c0"
    assert answers[1].events[-1]["choices"][0]["text"] == "b0"
    assert answers[3].json["object"] == "list"


async def test_connection_close_is_obeyed(served: Served) -> None:
    client = await served.client()
    answer = await client.ask("GET", "/health", Connection="close")
    assert answer.headers["connection"] == "close" and await client.is_closed()


async def test_http_1_0(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "hi"}, version="1.0")
    finish_all(await served.job())
    answer = await client.answer()
    assert answer.json["choices"][0]["text"] == "yes0" and await client.is_closed()


async def test_a_stream_for_http_1_0_ends_with_the_connection(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "hi", "stream": True}, version="1.0", Connection="keep-alive")
    finish_all(await served.job())
    answer = await client.answer()
    assert "transfer-encoding" not in answer.headers and "content-length" not in answer.headers
    assert answer.headers.get("connection") != "keep-alive"
    assert answer.events[0]["choices"][0]["text"] == "yes0"


async def test_expect_100_continue(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", None, Expect="100-continue", Content_Length="16")
    assert (await client.answer()).status == 100
    client.raw(b'{"prompt": "hi"}')
    finish_all(await served.job())
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/completions", {"Content_Length": "16"}, 401),
        ("/nowhere", {"Content_Length": "16", "X_Api_Key": "secret"}, 404),
        ("/v1/completions", {"Content_Length": "100001", "X_Api_Key": "secret"}, 413),
        ("/v1/completions", {"Content_Length": "16", "X_Api_Key": "secret", "Content_Type": "text/plain"}, 415),
    ],
)
async def test_nobody_is_told_to_continue_whose_body_is_not_read(
    path: str, headers: dict[str, str], status: int
) -> None:
    """It may never come, so that nothing can come behind it."""
    async with serving(linger_s=0.05, api_keys=["secret"]) as served:
        client = await served.client()
        answer = await client.ask("POST", path, None, Expect="100-continue", **headers)
        assert answer.status == status and answer.error and answer.headers["connection"] == "close"
        assert await client.is_closed()


async def test_who_sends_the_body_at_once_is_not_told_to_continue(served: Served) -> None:
    client = await served.client()
    for version in ("1.1", "1.0"):
        client.send(
            "POST", "/v1/completions", {"prompt": "hi"}, version, Expect="100-Continue", Connection="keep-alive"
        )
        finish_all(await served.job())
        assert (await client.answer()).status == 200


UNFIT: dict[str, tuple[bytes, int, str]] = {
    "HTTP/2 without TLS": (b"GET /health HTTP/2.0\r\nHost: a\r\n\r\n", 505, "HTTP/2.0"),
    "HTTP/0.9": (b"GET /health HTTP/0.9\r\nHost: a\r\n\r\n", 505, "HTTP/0.9"),
    "two codings": (
        b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        501,
        "Transfer-Encoding must be chunked",
    ),
    "chunks in HTTP/1.0": (
        b"POST /tokenize HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "Transfer-Encoding",
    ),
    "another expectation": (
        b"POST /tokenize HTTP/1.1\r\nHost: a\r\nExpect: more\r\nContent-Length: 2\r\n\r\n{}",
        417,
        "Expect must be 100-continue",
    ),
    "another expectation of Anthropic's clients": (
        b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nExpect: more\r\nContent-Length: 2\r\n\r\n{}",
        417,
        "Expect must be 100-continue",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
async def test_a_head_that_cannot_be_served(served: Served, name: str) -> None:
    sent, status, reason = UNFIT[name]
    client = await served.client()
    client.raw(sent)
    answer = await client.answer()
    assert answer.status == status and reason in answer.json["error"]["message"] and await client.is_closed()


async def test_no_answer_tells_of_the_software_below(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "hi", "stream": True})
    finish_all(await served.job())
    answers = [await client.answer()]
    for path in ("/health", "/", "/page/page.js", "/nowhere", "//health", "/v1//models"):
        answers.append(await client.ask("GET", path))
    client.raw(MALFORMED["no HTTP"])
    answers.append(await client.answer())
    assert not [answer.headers for answer in answers if "server" in answer.headers]


# --- bodies --------------------------------------------------------------------------------------------------------


async def test_a_body_that_is_too_long_by_its_length(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", None, Content_Length="100001")
    answer = await client.answer()
    assert answer.status == 413 and "100000 bytes" in answer.error["message"]


async def test_a_chunked_body_that_is_too_long(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", b"", Transfer_Encoding="chunked")
    for _ in range(11):
        client.raw(b"2710\r\n" + b" " * 10_000 + b"\r\n")
    answer = await client.answer()
    assert answer.status == 413 and "--max-body-bytes" in answer.error["message"]


async def test_a_chunked_body(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", b"", Transfer_Encoding="chunked")
    for byte in b'{"prompt": "hi"}':
        client.raw(b"1\r\n%c\r\n" % byte)
    client.raw(b"0\r\n\r\n")
    finish_all(await served.job())
    assert (await client.answer()).status == 200


async def test_a_body_of_just_the_limit(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", b'{"prompt": "hi"}'.ljust(100_000))
    finish_all(await served.job())
    assert (await client.answer()).status == 200


async def test_a_body_that_does_not_come(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.05)
    client = await served.client()
    client.send("POST", "/v1/completions", b"{", Content_Length="10")
    answer = await client.answer()
    assert answer.status == 408 and answer.error["type"] == "timeout_error"
    assert await client.is_closed()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"[" * 50_000])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_a_body_that_is_no_request(served: Served, path: str, body: bytes) -> None:
    answer = await served.ask("POST", path, body)
    assert answer.status == 400 and answer.error["message"]


async def test_a_client_that_leaves_while_it_sends(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", b"{", Content_Length="10")
    await client.writer.drain()
    await served.ask("GET", "/health")
    client.leave()
    await served.ask("GET", "/health")
    assert served.engine.jobs.empty() and caplog.records == []


# --- headers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sent", "expected"), [("abc-1", "abc-1"), ("a" * 500, "a" * 128), ("a\tb", "ab")])
async def test_a_request_id_is_echoed(served: Served, sent: str, expected: str) -> None:
    for path in ("/health", "/nowhere"):
        assert (await served.ask("GET", path, X_Request_Id=sent)).headers["x-request-id"] == expected


async def test_a_request_id_is_made(served: Served) -> None:
    made = {(await served.ask("GET", "/health", X_Request_Id=sent)).headers["x-request-id"] for sent in ("", "\xff")}
    assert len(made) == 2 and all(len(name) == 32 for name in made)


async def test_a_request_id_that_is_no_utf8_reaches_the_engine(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/chat/completions", {"messages": HI}, X_Request_Id="a\xff")
    finish_all(await served.job())
    answer = await client.answer()
    assert answer.status == 200 and answer.headers["x-request-id"] == "a"


NAMED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/inference/v1/generate": {"token_ids": [1]},
    "/v1/messages": {"messages": HI, "max_tokens": 5},
}


@pytest.mark.parametrize("path", NAMED)
async def test_a_request_id_in_the_body_is_treated_as_one_in_the_header(served: Served, path: str) -> None:
    """Logs, traces and records have what all actors call the request."""
    for sent, expected in (
        ("mine", "mine"),
        ("a\nERROR b\x1b[2Jc\u202ed\u2028", "aERROR b[2Jcd"),
        ("é" * 500, "é" * 128),
    ):
        client = await served.client()
        client.send("POST", path, {**NAMED[path], "request_id": sent}, X_Request_Id="other")
        job = await served.job()
        finish_all(job)
        answer = await client.answer()
        assert answer.status == 200, answer.body
        assert msgspec.msgpack.decode(job.params[0], type=Generation).request_id == expected
        assert answer.headers["x-request-id"].encode("latin-1").decode() == expected
        assert answer.json.get("request_id", expected) == expected
        client.leave()


@pytest.mark.parametrize("path", [b"/\xff", b"/%ff", b"/%00", b"/\xc3\xa9", b"/v1/models/%ff", b"//", b"*"])
async def test_odd_paths(served: Served, path: bytes) -> None:
    client = await served.client()
    client.raw(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = await client.answer()
    assert answer.status in (400, 404) and answer.error["message"]


async def test_nothing_at_all(served: Served) -> None:
    """A connection that is opened and closed again, as a port scan or a load balancer's probe does."""
    clients: list[Any] = [await served.client() for _ in range(5)]
    for client in clients:
        client.leave()
    assert (await asyncio.wait_for(served.ask("GET", "/health"), 10)).status == 200


async def test_a_coding_that_is_not_known_is_refused_by_name(served: Served) -> None:
    client = await served.client()
    answer = await client.ask("POST", "/v1/completions", b"\x1f\x8b\x08", **{"Content-Encoding": "br"})
    assert answer.status == 415 and ", not br" in answer.error["message"]
    body = gzip.compress(b'{"prompt":"hi"}')
    client.send("POST", "/v1/completions", body, **{"Content-Encoding": "gzip"})
    finish_all(await served.job())
    assert (await client.answer()).status == 200
    client.send("POST", "/v1/completions", {"prompt": "hi"}, **{"Content-Encoding": "identity"})
    finish_all(await served.job())
    assert (await client.answer()).status == 200
