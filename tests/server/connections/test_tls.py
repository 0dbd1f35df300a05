"""TLS: the whole server behind it, clients with and without certificates, and what does not outlive its frontend."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from openai import OpenAI

from tests.support.certificates import OPENSSL, Certificates, make_certificate
from tests.support.client import CAPITAL, address, complete, connect, open_socket
from tests.support.server import Server

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="certificates are made by the openssl command")
WAIT_S = 30.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(files: Certificates) -> Iterator[Server]:
    with Server("--frontends", "2", "--threads", "1", *files.options()) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.read_all()


def kill_frontends(server: Server) -> None:
    for name in ("frontend-0", "frontend-1"):
        server.replace(name)


def is_reset(connection: socket.socket) -> bool:
    """Is that its end? Below TLS, since Python's takes any end of a connection for a plain one."""
    with socket.socket(fileno=os.dup(connection.fileno())) as below:
        below.settimeout(WAIT_S)
        try:
            while below.recv(1 << 16):
                pass
        except ConnectionResetError:
            return True
    return False


def test_the_openai_client(server: Server, files: Certificates) -> None:
    """Whole answers and streams, one after the other on the same connections."""
    host, port = address(server)
    with httpx.Client(verify=files.context()) as transport:
        client = OpenAI(base_url=f"https://{host}:{port}/v1", api_key="none", http_client=transport, max_retries=0)
        for _ in range(3):
            assert client.completions.create(model="actorserve-demo", **CAPITAL).choices[0].text == " Paris."
            stream = client.completions.create(model="actorserve-demo", stream=True, **CAPITAL)
            assert "".join(chunk.choices[0].text for chunk in stream) == " Paris."


def test_a_long_request_and_a_long_answer(server: Server, files: Certificates) -> None:
    connection = connect(server, files.context())
    connection.request("POST", "/detokenize", json.dumps({"tokens": [35] * 300_000, "user": "x" * 1_000_000}))
    assert len(json.load(connection.getresponse())["prompt"]) >= 300_000
    assert complete(connection) == " Paris."
    connection.close()


def test_a_client_that_does_not_know_the_authority_is_not_served(server: Server, files: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server, ssl.create_default_context())
    assert complete(connect(server, files.context())) == " Paris."


@pytest.mark.parametrize(
    "words", [b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\x05junk!", b"\xff" * 5000]
)
def test_what_is_no_tls_is_refused(server: Server, files: Certificates, words: bytes) -> None:
    pids = server.pids()
    with open_socket(server) as connection:
        connection.sendall(words)
        answer = b""
        try:
            while piece := connection.recv(1 << 16):
                answer += piece
        except ConnectionResetError:
            pass
    assert b"HTTP" not in answer
    assert complete(connect(server, files.context())) == " Paris."
    assert server.pids() == pids


def test_a_stream_is_reset_when_its_frontend_dies(server: Server, files: Certificates) -> None:
    """As is a connection between two requests; the next one works."""
    streaming, resting = connect(server, files.context()), connect(server, files.context())
    assert complete(resting) == " Paris."
    body = {**CAPITAL, "stream": True, "max_tokens": 2000, "ignore_eos": True}
    streaming.request("POST", "/v1/completions", json.dumps(body))
    response = streaming.getresponse()
    assert response.read(10)
    kill_frontends(server)
    assert is_reset(streaming.sock) and is_reset(resting.sock)
    assert complete(connect(server, files.context())) == " Paris."


def test_a_frontend_that_is_terminated_answers_what_it_has(server: Server, files: Certificates) -> None:
    """Nobody could go on with that; new ones are not given to it."""
    connections = [connect(server, files.context()) for _ in range(2)]
    for connection in connections:
        body = {**CAPITAL, "stream": True, "max_tokens": 300, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
    responses = [connection.getresponse() for connection in connections]
    assert all(response.read(10) for response in responses)
    for name in ("frontend-0", "frontend-1"):
        os.kill(server.pids()[name], signal.SIGTERM)
    assert all(b"data: [DONE]" in response.read() for response in responses)
    for _ in range(2):
        server.wait_for(r"frontend-\d is up")  # whichever comes first
    assert complete(connect(server, files.context())) == " Paris."


def test_who_has_not_begun_to_speak_is_served_by_the_successor(server: Server, files: Certificates) -> None:
    connections = [open_socket(server) for _ in range(4)]
    # both had them in their queue
    assert all(complete(connect(server, files.context())) == " Paris." for _ in range(2))
    kill_frontends(server)
    for raw in connections:
        connection = http.client.HTTPSConnection(*address(server), timeout=WAIT_S)
        connection.sock = files.context().wrap_socket(raw, server_hostname="localhost")
        assert complete(connection) == " Paris."
        connection.close()


def test_half_a_handshake_is_reset(server: Server, files: Certificates) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = files.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with open_socket(server) as connection:
        connection.sendall(outgoing.read()[:50])
        # both have read what was there
        assert all(complete(connect(server, files.context())) == " Paris." for _ in range(2))
        kill_frontends(server)
        assert is_reset(connection)


def test_keys_of_requests_are_handled_by_whoever_has_the_connection(server: Server, files: Certificates) -> None:
    """Without TLS half of them would be another frontend's."""
    connection = connect(server, files.context())
    for number in range(12):
        key = {"Idempotency-Key": f"one-{number}"}
        assert complete(connection, key) == " Paris."
        connection.request("POST", "/v1/completions", json.dumps(CAPITAL), key)
        response = connection.getresponse()
        assert response.headers["Idempotent-Replayed"] == "true" and b"Paris" in response.read()


def test_responses_are_found_whoever_keeps_them(server: Server, files: Certificates) -> None:
    """What runs of them is its frontend's alone."""
    connections: list[http.client.HTTPConnection] = []
    names: dict[str, str] = {}

    def ask(connection: http.client.HTTPConnection, method: str, path: str, **body: Any) -> tuple[int, Any]:
        connection.request(method, f"/v1/responses{path}", json.dumps(body) if body else None)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    while len(names) < 2:
        assert len(connections) < 64, "all connections are one frontend's"
        connections.append(connect(server, files.context()))
        status, made = ask(connections[-1], "POST", "", input="Hello!", max_output_tokens=4, background=True)
        assert status == 200
        names[made["id"][:7]] = made["id"]  # resp_, and the frontend's number
    refused = 0
    for connection in connections:
        for name in names.values():
            deadline = time.monotonic() + WAIT_S
            while (found := ask(connection, "GET", f"/{name}"))[1].get("status") in ("queued", "in_progress"):
                assert time.monotonic() < deadline
            assert found[0] == 200 and found[1]["id"] == name
            body = {"input": "And?", "max_output_tokens": 4, "previous_response_id": name}
            status, following = ask(connection, "POST", "", **body)
            assert status == 200 and following["previous_response_id"] == name
            status, answer = ask(connection, "POST", f"/{name}/cancel")
            assert status in (200, 503)
            if status == 503:
                assert "With TLS a connection stays with its frontend" in answer["error"]["message"]
            refused += status == 503
    assert refused == len(connections), "each connection is one frontend's"


def test_certificates_that_are_renewed(server: Server, files: Certificates) -> None:
    """Connections that are there go on; files that cannot be used change nothing."""

    def serial() -> str:
        connection = connect(server, files.context())
        assert complete(connection) == " Paris."
        assert isinstance(connection.sock, ssl.SSLSocket)
        found = str((connection.sock.getpeercert() or {})["serialNumber"])
        connection.close()
        return found

    old, before = connect(server, files.context()), serial()
    make_certificate(files.server[0].parent, "server", files.authority)
    server.wait_for("certificates were read again")
    deadline = time.monotonic() + WAIT_S
    while before in {serial() for _ in range(4)}:  # the other frontend looks by its own clock
        assert time.monotonic() < deadline, "they are not renewed"
    assert complete(old) == " Paris."
    renewed, kept = serial(), files.server[0].read_bytes()
    files.server[0].write_text("none")
    server.wait_for(r"--ssl-certfile: \S+ holds no certificate; the certificates that were read before are used on")
    assert serial() == renewed
    files.server[0].write_bytes(kept)
    server.wait_for("certificates were read again")
    old.close()


def test_clients_must_have_a_certificate_where_authorities_are_named(files: Certificates) -> None:
    options = ("--ssl-ca-certs", str(files.authority[0]), "--worker", "scripted")
    with Server(*files.options(), *options) as server:
        assert complete(connect(server, files.context(files.client)))
        for wrong in (None, files.stranger):
            with pytest.raises((ssl.SSLError, ConnectionError)):  # with TLS 1.3 it is said when the client reads
                complete(connect(server, files.context(wrong)))
        assert complete(connect(server, files.context(files.client)))
        assert server.stop() == 0
        assert "Traceback" not in server.read_all()


def test_the_server_does_not_start_with_them(files: Certificates, tmp_path: Path) -> None:
    server = Server("--ssl-certfile", str(tmp_path / "none"), wait=False)
    with server:
        assert server.wait() == 2
        output = server.read_all().strip()
    assert output == f"actorserve: error: --ssl-certfile: {tmp_path / 'none'} cannot be read: No such file or directory"
