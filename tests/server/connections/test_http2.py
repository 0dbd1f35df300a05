"""--http2-port: streams of HTTP/2 go on whoever dies, and their connections end with the relay alone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from h2.errors import ErrorCodes

from tests.support.certificates import OPENSSL, Certificates
from tests.support.client import free_port
from tests.support.http2 import Http2Client
from tests.support.selection import slow
from tests.support.server import Server

from .relays import BODY, check_successor, relay, whole

JSON = (("content-type", "application/json"),)
WAIT_S = 60.0


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(port: int) -> Iterator[Server]:
    options = ("--threads", "1", "--frontends", "2", "--hang-timeout", "4", "--max-restarts", "100")
    with Server(*options, "--max-header-count", "64", "--http2-port", str(port)) as made:
        made.wait_for("http2 is up", since_start=True)
        yield made
        assert made.stop() == 0
        assert "Traceback" not in made.read_all()


@pytest.fixture
def client(server: Server, port: int) -> Iterator[httpx.Client]:
    with httpx.Client(http1=False, http2=True, base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as made:
        yield made


@pytest.fixture
def frames(server: Server, port: int) -> Iterator[Http2Client]:
    with Http2Client(port) as made:
        yield made


def wait_for_gauge(server: Server, name: str, value: int) -> None:
    """What the relay counts reaches the board by its next beat."""
    pattern = re.compile(rf"^actorserve:http2_{name}{{.*}} ([0-9.e+]+)$", re.MULTILINE)
    deadline, found = time.monotonic() + WAIT_S, [""]
    with httpx.Client(base_url=server.base_url, timeout=WAIT_S) as plain:
        while time.monotonic() < deadline:
            found = pattern.findall(plain.get("/metrics").text)
            if float(found[0]) == value:
                return
    raise AssertionError(f"{name} is {found[0]}, not {value}")


def test_streams_beside_each_other_go_on_whoever_dies(server: Server, client: httpx.Client, port: int) -> None:
    """On one connection, whose frontends all die meanwhile. By one thread: those of the client share its compression of
    headers without a lock.
    """
    expected = whole(client, "HTTP/2")

    async def stream(many: httpx.AsyncClient, index: int) -> str:
        parts: list[str] = []
        async with many.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                said: Any = json.loads(line[6:])
                parts.append(said["choices"][0]["text"])
                if index == 0 and len(parts) in (3, 12, 20):
                    name = {3: "frontend-0", 12: "frontend-1", 20: "worker"}[len(parts)]
                    os.kill(server.actors()[name], signal.SIGKILL)
        return "".join(parts)

    async def all_streams() -> list[str]:
        address = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(http1=False, http2=True, base_url=address, timeout=WAIT_S) as many:
            return await asyncio.gather(*(stream(many, index) for index in range(8)))

    assert asyncio.run(all_streams()) == [expected] * 8


@pytest.mark.parametrize("number", [signal.SIGKILL, *slow(signal.SIGSTOP)])
def test_the_death_of_the_relay_costs_its_connections_alone(
    server: Server, client: httpx.Client, port: int, number: signal.Signals
) -> None:
    """Or that it hangs; `ps` and `/metrics` have seen it."""
    assert whole(client, "HTTP/2")
    before = relay(server, "http2")
    assert before.pid == server.actors()["http2"] and before.state == "ready"
    with Http2Client(port) as lost, httpx.Client(base_url=server.base_url, timeout=WAIT_S) as other:
        lost.send("POST", "/v1/completions", json.dumps(BODY | {"stream": True, "max_tokens": 2000}).encode(), JSON)
        lost.until(lambda: bool(lost.answers[1].body))
        with other.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            server.replace("http2", number)
            assert answer.read().endswith(b"data: [DONE]\n\n")
        lost.until_closed()
        assert not lost.answers[1].ended
        figures = other.get("/metrics").text
    with Http2Client(port) as again:
        assert again.ask("GET", "/v1/models").status == 200
    after = check_successor(server, before, figures)
    assert after.gauges["requests"] >= before.gauges["requests"]


def test_a_reset_stream_is_a_client_that_has_gone(server: Server, frames: Http2Client) -> None:
    """Its request is cancelled, the others of its connection are not."""
    before = relay(server, "http2").gauges["resets"]
    body = json.dumps(BODY | {"stream": True, "max_tokens": 2000}).encode()
    first = frames.send("POST", "/v1/completions", body, JSON)
    second = frames.send("POST", "/v1/completions", json.dumps(BODY | {"stream": True}).encode(), JSON)
    frames.until(lambda: bool(frames.answers[first].body))
    frames.http.reset_stream(first, ErrorCodes.CANCEL)
    frames.flush()
    assert frames.whole(second).body.endswith(b"data: [DONE]\n\n")
    server.wait_for(r"/v1/completions .*(client|abort|gone|499)", since_start=True)
    wait_for_gauge(server, "resets_total", before + 1)
    wait_for_gauge(server, "streams", 0)


def test_a_client_without_room_gets_no_more_than_there_is(server: Server, port: int) -> None:
    """And all of it once it has made room; others of the connection's streams go on meanwhile."""
    with Http2Client(port, reads=False) as frames:
        number = frames.send("GET", "/openapi.json")
        frames.until(lambda: len(frames.answers[number].body) == 65_535)
        frames.http.increment_flow_control_window(1 << 24)
        beside = frames.ask("GET", "/health")
        assert beside.status == 200 and not frames.answers[number].ended
        frames.http.increment_flow_control_window(1 << 24, number)
        frames.flush()
        answer = frames.whole(number)
        assert len(answer.body) == int(answer.headers["content-length"]) > 65_535 and json.loads(answer.body)


@pytest.mark.parametrize("size", [3 << 20, 5 << 20])
def test_a_large_body(frames: Http2Client, size: int) -> None:
    """That comes as windows let it, or is refused, which leaves the connection to others."""
    body = json.dumps({"prompt": " " * size, "max_tokens": 1}).encode()
    answer = frames.ask("POST", "/v1/completions", body, JSON)
    assert answer.status == (400 if size < 4 << 20 else 413)
    assert "error" in json.loads(answer.body)
    assert frames.ask("GET", "/health").status == 200


def test_a_body_in_parts_with_a_trailer_behind(frames: Http2Client) -> None:
    body = json.dumps(BODY | {"max_tokens": 4}).encode()
    number = frames.send("POST", "/v1/completions", None, JSON, end=False)
    for at in range(0, len(body), 7):
        frames.give(number, body[at : at + 7], end=False)
    frames.http.send_headers(number, [("x-trailer", "1")], end_stream=True)
    frames.flush()
    assert frames.whole(number).status == 200


def test_who_waits_to_be_asked_for_the_body_is(frames: Http2Client) -> None:
    body = json.dumps(BODY | {"max_tokens": 4}).encode()
    head = [*JSON, ("expect", "100-continue"), ("content-length", str(len(body)))]
    number = frames.send("POST", "/v1/completions", None, head, end=False)
    frames.until(lambda: frames.answers[number].informed == ["100"])
    frames.give(number, body)
    assert frames.whole(number).status == 200


def test_an_answer_without_a_body(frames: Http2Client) -> None:
    answer = frames.ask("HEAD", "/v1/models")
    assert answer.status == 200 and int(answer.headers["content-length"]) > 100 and not answer.body
    assert not answer.headers.keys() & {"connection", "transfer-encoding", "keep-alive"}
    origin = [("origin", "https://a.example"), ("access-control-request-method", "POST")]
    assert frames.ask("OPTIONS", "/v1/completions", None, origin).status in (200, 204)


def test_heads_are_bounded(server: Server, frames: Http2Client, port: int) -> None:
    """Too many lines are refused; too many bytes end the connection, since what they say of its tables is unknown."""
    bad = relay(server, "http2").gauges["bad"]
    many = [(f"x-{number}", "1") for number in range(80)]
    assert frames.ask("GET", "/health", None, many).status == 431
    assert frames.ask("GET", "/health").status == 200
    with Http2Client(port) as large:
        large.send("GET", "/health", None, [("x-large", "1" * 8000) for _ in range(12)])
        large.until_closed()
        assert large.goodbye == ErrorCodes.ENHANCE_YOUR_CALM
    wait_for_gauge(server, "bad_total", bad + 1)
    assert frames.ask("GET", "/health").status == 200


def rapid_resets(frames: Http2Client) -> None:
    for _ in range(3000):
        number = frames.send("GET", "/health")
        frames.http.reset_stream(number)
        frames.flush()


def pings(frames: Http2Client) -> None:
    for _ in range(3000):
        frames.http.ping(b"12345678")
        frames.flush()


def no_end_of_a_head(frames: Http2Client) -> None:
    """HEADERS without an end, and CONTINUATION frames behind it."""
    frames.socket.sendall(b"\x00\x00\x00\x01\x00\x00\x00\x00\x01")
    frames.socket.sendall(b"\x00\x00\x01\x09\x00\x00\x00\x00\x01\x82" * 3000)


def empty_data(frames: Http2Client) -> None:
    number = frames.send("POST", "/v1/completions", None, JSON, end=False)
    for _ in range(3000):
        frames.http.send_data(number, b"")
        frames.flush()


def no_frames(frames: Http2Client) -> None:
    frames.socket.sendall(b"\xff" * 4096)


def too_much_data(frames: Http2Client) -> None:
    """More than there was room for."""
    number = frames.send("POST", "/v1/completions", None, JSON, end=False)
    for _ in range(400):
        frames.socket.sendall(b"\x00\x40\x00\x00\x00" + number.to_bytes(4, "big") + b"x" * 16384)


@pytest.mark.parametrize(
    "misdeed", [rapid_resets, no_end_of_a_head, too_much_data, *slow(pings, empty_data, no_frames)]
)
def test_who_breaks_the_rules_goes_alone(server: Server, frames: Http2Client, port: int, misdeed: Any) -> None:
    pid, bad = server.actors()["http2"], relay(server, "http2").gauges["bad"]
    with Http2Client(port) as beside:
        body = json.dumps(BODY | {"stream": True}).encode()
        number = beside.send("POST", "/v1/completions", body, JSON)
        try:
            misdeed(frames)
        except ConnectionError:  # it is over before all is said
            frames.closed = True
        frames.until_closed()
        assert beside.whole(number).body.endswith(b"data: [DONE]\n\n")
    assert server.actors()["http2"] == pid
    wait_for_gauge(server, "bad_total", bad + 1)
    wait_for_gauge(server, "streams", 0)


def test_http_1_1_at_the_same_port(server: Server, port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as plain:
        answer = plain.get("/v1/models")
        assert answer.http_version == "HTTP/1.1" and answer.status_code == 200
        assert plain.get("/health").status_code == 200  # on the same connection


def test_who_is_there_at_the_end_gets_to_the_end() -> None:
    port = free_port()
    with Server("--threads", "1", "--http2-port", str(port)) as server:
        server.wait_for("http2 is up", since_start=True)
        with Http2Client(port) as frames, Http2Client(port) as idle:
            assert idle.ask("GET", "/health").status == 200
            number = frames.send("POST", "/v1/completions", json.dumps(BODY | {"stream": True}).encode(), JSON)
            frames.until(lambda: bool(frames.answers[number].body))
            server.signal(signal.SIGTERM)
            idle.until_closed()
            frames.until_closed()
            assert idle.goodbye == frames.goodbye == ErrorCodes.NO_ERROR
            assert frames.answers[number].body.endswith(b"data: [DONE]\n\n") and frames.answers[number].ended
        assert server.wait() == 0
        assert "Traceback" not in server.read_all()


@pytest.mark.skipif(OPENSSL is None, reason="certificates are made by the openssl command")
def test_with_tls_streams_go_on_too(tmp_path: Path) -> None:
    """Both protocols, as a client chooses; the relay has the keys, so no frontend takes them along."""
    files, port = Certificates(tmp_path), free_port()
    with Server("--threads", "1", *files.options(), "--http2-port", str(port)) as server:
        server.wait_for("http2 is up", since_start=True)
        for http2 in (True, False):
            base_url, context = f"https://localhost:{port}", files.context()
            with httpx.Client(http2=http2, base_url=base_url, verify=context, timeout=WAIT_S) as client:
                answer = client.post("/v1/completions", json=BODY)
                assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
                expected, parts = answer.json()["choices"][0]["text"], []
                with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as streamed:
                    for line in streamed.iter_lines():
                        if line.startswith("data: {"):
                            parts.append(json.loads(line[6:])["choices"][0]["text"])
                            if len(parts) == 3:
                                os.kill(server.actors()["frontend-0"], signal.SIGKILL)
                assert "".join(parts) == expected


def test_a_port_that_is_taken_is_told_of() -> None:
    with Server("--threads", "1") as server:
        port = server.base_url.rpartition(":")[2]
        with Server("--http2-port", port, wait=False) as other:
            assert other.wait() == 1
            assert f"cannot listen on 127.0.0.1:{port}" in other.read_all()
