"""Clients' connections outlive the frontend that serves them, as long as nothing is under way on them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from tests.server import LAUNCH, Server

WAIT_S = 30.0
FEW = "import os, sys, resource as r; r.setrlimit(r.RLIMIT_NOFILE, (80, 80)); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--frontends", "2", "--threads", "1", "--max-restarts", "1000") as running:
        yield running


def connect(server: Server) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(server.base_url.removeprefix("http://"), timeout=WAIT_S)
    connection.connect()
    return connection


def ask(connection: http.client.HTTPConnection) -> str:
    """A whole answer; the connection stays."""
    body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    connection.auto_open = 0  # a connection that was lost is not opened again behind our back
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.status == 200
    return str(json.load(response)["choices"][0]["text"])


def kill_frontends(server: Server) -> None:
    for name in ("frontend-0", "frontend-1"):
        os.kill(server.pids()[name], signal.SIGKILL)
        server.wait_for(rf"{name} is up")


def test_connections_between_two_requests_survive_their_frontend(server: Server) -> None:
    connections = [connect(server) for _ in range(40)]
    assert all("Paris" in ask(connection) for connection in connections[:20])
    for _ in range(3):
        kill_frontends(server)
        assert all("Paris" in ask(connection) for connection in connections)
    for connection in connections:
        connection.close()


def test_no_connection_is_lost_on_its_way_to_a_frontend(server: Server) -> None:
    """Clients come while frontends die again and again; each asks once all are up."""
    connections = []
    for _ in range(10):
        for name in ("frontend-0", "frontend-1"):
            connections += [connect(server) for _ in range(5)]
            os.kill(server.pids()[name], signal.SIGKILL)
            connections += [connect(server) for _ in range(5)]
            server.wait_for(rf"{name} is up")
    assert all("Paris" in ask(connection) for connection in connections)
    for connection in connections:
        connection.close()


def test_a_connection_in_the_middle_of_a_request_is_reset(server: Server) -> None:
    """It neither hangs nor gets the rest of an answer that is not its own."""
    host, _, port = server.base_url.removeprefix("http://").rpartition(":")
    half = socket.create_connection((host, int(port)), timeout=WAIT_S)
    half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
    assert "Paris" in ask(connect(server)) and "Paris" in ask(connect(server))  # both have read what was there
    kill_frontends(server)
    with pytest.raises(ConnectionResetError):
        half.recv(1)
    half.close()


def test_frontends_share_the_load(server: Server) -> None:
    connections = [connect(server) for _ in range(20)]
    assert all("Paris" in ask(connection) for connection in connections)
    with socket.create_connection(tuple(server.base_url.removeprefix("http://").split(":"))):  # type: ignore[arg-type]
        files = {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in server.pids().items() if "frontend" in name}
    assert abs(files["frontend-0"] - files["frontend-1"]) <= 3, files
    for connection in connections:
        connection.close()


def test_numbers_and_descriptors_come_back(server: Server) -> None:
    before = len(os.listdir(f"/proc/{server.pid}/fd"))
    for _ in range(300):
        connection = connect(server)
        connection.close()
    gone = connect(server)
    gone.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # type: ignore[union-attr]
    gone.close()
    assert "Paris" in ask(connect(server)) and "Paris" in ask(connect(server))
    assert len(os.listdir(f"/proc/{server.pid}/fd")) < before + 50


@pytest.mark.parametrize("limit", ["option", "descriptors"])
def test_too_many_are_refused_and_room_is_used_again(limit: str) -> None:
    most = ("--max-connections", "20") if limit == "option" else ()
    command = LAUNCH if limit == "option" else (sys.executable, "-c", FEW, *LAUNCH)
    with Server(*most, "--threads", "1", command=command) as server:
        connections = [connect(server) for _ in range(60)]
        statuses = []
        for connection in connections:
            connection.auto_open = 0
            try:
                connection.request("GET", "/health")
                statuses.append(connection.getresponse().status)
            except (ConnectionError, http.client.HTTPException):  # refused before it had asked
                statuses.append(503)
        assert statuses.count(200) >= 20 and set(statuses) == {200, 503}
        for connection in connections:
            connection.close()
        for _ in range(20):
            last = connect(server)
            last.request("GET", "/health")
            if last.getresponse().status == 200:
                break
        else:
            pytest.fail("no room came back")
