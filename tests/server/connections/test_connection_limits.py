"""One client holds all connections: others come in all the same, and anybody may ask how the server is."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator

import pytest

from tests.support.client import CAPITAL, complete, connect, open_socket
from tests.support.server import Server

MOST = 24
SHARE = 20
WAIT_S = 30.0
OTHER = "127.0.0.2"
SCRIPTED = ("--worker", "scripted", "--scripted-step-ms", "2")  # a stream of 1,000 tokens outlasts a frontend's death
HEADS = ("--max-header-bytes", "8k", "--max-header-count", "40")
SERVER_OPTIONS = ("--max-connections", str(MOST), "--frontends", "2", *SCRIPTED, *HEADS)


@pytest.fixture
def held(server: Server) -> Iterator[list[http.client.HTTPConnection]]:
    """One client's connections, as many as there may be; they have asked once."""
    deadline = time.monotonic() + WAIT_S
    while True:
        connections = [connect(server) for _ in range(MOST)]
        if all(status(connection, "/v1/models") == 200 for connection in connections):
            break
        assert time.monotonic() < deadline, "those of the test before do not go"
        for connection in connections:
            connection.close()
        time.sleep(0.01)  # nothing tells
    yield connections
    for connection in connections:
        connection.close()


def status(connection: http.client.HTTPConnection, path: str) -> int:
    """503 also where it is refused before it has asked."""
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
    except (ConnectionError, http.client.HTTPException):
        return 503
    return response.status


def patient(server: Server, address: str) -> http.client.HTTPConnection:
    """Who comes again when told that there is no room: nobody has been idle for long enough."""
    deadline = time.monotonic() + WAIT_S
    while status(connection := connect(server, source=address), "/v1/models") != 200:
        assert time.monotonic() < deadline, "no room is made"
        time.sleep(0.01)  # nothing tells
    return connection


def is_over(connection: http.client.HTTPConnection) -> bool:
    connection.sock.setblocking(False)
    try:
        return connection.sock.recv(1) == b""
    except BlockingIOError:
        return False
    finally:
        connection.sock.settimeout(WAIT_S)


def test_whoever_holds_all_may_still_ask_how_the_server_is(
    server: Server, held: list[http.client.HTTPConnection]
) -> None:
    """Though the reserve is held in silence, too; whatever else is asked there is 503, and what was there goes on."""
    silent = [connect(server) for _ in range(100)]
    for path in ("/health", "/ready", "/ping", "/version", "/metrics") * 4:
        connection = connect(server)
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200 and response.headers["Connection"] == "close" and response.read()
    connection = connect(server)
    connection.request("POST", "/v1/completions", json.dumps(CAPITAL))
    response = connection.getresponse()
    assert response.status == 503 and response.headers["Retry-After"] == "1"
    assert json.load(response)["error"]["type"] == "service_unavailable_error"
    assert all(complete(connection) for connection in held)
    for connection in silent:
        connection.close()


def test_another_client_gets_what_the_first_does_not_use(
    server: Server, held: list[http.client.HTTPConnection]
) -> None:
    """Also where a frontend died meanwhile. Streams of the first go on, as do those that have not waited for long."""
    streams = [held.pop() for _ in range(2)]
    for stream in streams:
        body = {**CAPITAL, "max_tokens": 1000, "ignore_eos": True, "stream": True}
        stream.request("POST", "/v1/completions", json.dumps(body))
    for name in ("frontend-0", "frontend-1"):
        server.replace(name)
    others = [patient(server, OTHER) for _ in range(8)]
    assert all(complete(connection) for connection in others * 2)
    assert len(others) <= sum(map(is_over, held)) < len(held)
    for stream in streams:
        text = stream.getresponse().read()
        assert text.endswith(b"data: [DONE]\n\n")
    with open_socket(server) as half, half.makefile("rb") as answer:
        half.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")  # a head that is begun is not idle
        half.sendall(b"\r\n")
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
    for connection in others + streams:
        connection.close()


@pytest.mark.parametrize(
    ("head", "statuses", "reason"),
    [
        ({"X-Long": "x" * 3000}, {200}, b""),
        ({"X-Long": "x" * 5000}, {400, 431}, b"a line of its head is longer than 4000 bytes"),
        ({f"X-{number}": "x" for number in range(50)}, {400, 431}, b"malformed"),
    ],
)
def test_heads_are_as_long_as_options_say(
    server: Server, head: dict[str, str], statuses: set[int], reason: bytes
) -> None:
    connection = patient(server, OTHER)
    connection.request("GET", "/v1/models", headers=head)
    response = connection.getresponse()
    assert response.status in statuses and reason in response.read()
    connection.close()


def test_a_share_of_their_own() -> None:
    limits = ("--max-connections", str(MOST), "--max-connections-per-client", str(SHARE))
    with Server(*limits, *SCRIPTED) as server:
        own = [connect(server) for _ in range(SHARE)]
        assert [status(connection, "/v1/models") for connection in own] == [200] * SHARE
        assert status(connect(server), "/v1/models") == 503 and status(connect(server), "/health") == 200
        others = [connect(server, source=OTHER) for _ in range(MOST - SHARE)]
        assert all(complete(connection) for connection in [*own, *others])
        for connection in own + others:
            connection.close()
