"""Clients' connections outlive the frontend that serves them, as long as nothing is under way on them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import struct
import time

import pytest

from tests.support.client import complete, connect, open_socket
from tests.support.selection import slow
from tests.support.server import FEW_DESCRIPTORS, WAIT_S, Server
from tests.support.until import until

SERVER_OPTIONS = ("--frontends", "2", "--threads", "1", "--max-restarts", "1000")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def kill_frontends(server: Server, times: int = 1, number: signal.Signals = signal.SIGKILL) -> None:
    for name in ("frontend-0", "frontend-1") * times:
        server.replace(name, number)


def test_connections_between_two_requests_survive_their_frontend(server: Server) -> None:
    connections = [connect(server) for _ in range(40)]
    assert all("Paris" in complete(connection) for connection in connections[:20])
    for _ in range(2):
        kill_frontends(server)
        assert all("Paris" in complete(connection) for connection in connections)
    for connection in connections:
        connection.close()


def test_no_connection_is_lost_on_its_way_to_a_frontend(server: Server) -> None:
    """Clients come while frontends die again and again; each asks once all are up."""
    connections = []
    for _ in range(4):
        for name in ("frontend-0", "frontend-1"):
            connections += [connect(server) for _ in range(5)]
            os.kill(server.pids()[name], signal.SIGKILL)
            connections += [connect(server) for _ in range(5)]
            server.wait_for(rf"{name} is up")
    assert all("Paris" in complete(connection) for connection in connections)
    for connection in connections:
        connection.close()


def request(body: dict[str, object]) -> bytes:
    data = json.dumps({"prompt": "The capital of France is", "temperature": 0, **body}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
    return f"{head}{len(data)}\r\n\r\n".encode() + data


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(1 << 16):
        data += piece
    connection.close()
    return data


@pytest.mark.parametrize("pieces", [2, 3, *slow(7)])
def test_a_request_that_is_half_sent_goes_on(server: Server, pieces: int) -> None:
    """Also a long one; frontends die between its pieces."""
    data = request({"max_tokens": 4, "user": "x" * 300_000 if pieces == 3 else ""})
    connection = open_socket(server)
    for number in range(pieces):
        connection.sendall(data[number * len(data) // pieces : (number + 1) * len(data) // pieces])
        # both have read what was there
        assert "Paris" in complete(connect(server)) and "Paris" in complete(connect(server))
        kill_frontends(server)
    answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 OK") and b"Paris" in answer


def send_when_told(connection: socket.socket, data: bytes) -> None:
    """As curl sends what is long, and .NET whatever there is: the body once the server wants it."""
    head, _, body = data.partition(b"\r\n\r\n")
    connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
    told = b""
    while len(told) < len(CONTINUE) and (piece := connection.recv(len(CONTINUE) - len(told))):
        told += piece
    assert told == CONTINUE
    connection.sendall(body)


@pytest.mark.parametrize("expects", [False, True])
@pytest.mark.parametrize("stream", [True, False])
def test_requests_that_wait_for_their_first_byte_are_done_again(server: Server, stream: bool, expects: bool) -> None:
    """The scheduler is stopped meanwhile, so that none is answered before its frontend dies."""
    scheduler = server.pids()["scheduler"]
    os.kill(scheduler, signal.SIGSTOP)
    connections = [open_socket(server) for _ in range(12)]
    for connection in connections:
        data = request({"max_tokens": 4, "stream": stream})
        send_when_told(connection, data) if expects else connection.sendall(data)
    kill_frontends(server)
    os.kill(scheduler, signal.SIGCONT)
    for connection in connections:
        answer = read_all(connection)
        texts = re.findall(rb'"text":"(.*?)"', answer)
        assert answer.startswith(b"HTTP/1.1 200 OK") and b"".join(texts) == b" Paris."


def test_a_body_that_was_asked_for_may_come_to_the_successor(server: Server) -> None:
    connections = [open_socket(server) for _ in range(4)]
    head, _, body = request({"max_tokens": 4}).partition(b"\r\n\r\n")
    for connection in connections:
        connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
    assert all(connection.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE for connection in connections)
    kill_frontends(server)
    for connection in connections:
        connection.sendall(body)
    assert all(read_all(connection).startswith(b"HTTP/1.1 200 OK") for connection in connections)


@pytest.mark.parametrize("why", ["key", *slow("response")])
def test_requests_that_belong_to_another_frontend_are_told_to_continue(server: Server, why: str) -> None:
    """Each is handled by one of two frontends, whichever has read its body."""
    first = {"input": "Hello!", "max_output_tokens": 1}
    for number in range(50):
        fields: dict[str, object] = {"max_output_tokens": 1, "input": "Hello!"}
        if why == "response":
            fields["previous_response_id"] = json.loads(read_all_of(server, first))["id"]
        data = json.dumps(fields).encode()
        head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n"
        key = f"Idempotency-Key: {why}-{number}\r\n" if why == "key" else ""
        connection = open_socket(server)
        send_when_told(connection, f"{head}{key}\r\n".encode() + data)
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK")


def read_all_of(server: Server, fields: dict[str, object]) -> bytes:
    """The body of a response that is kept."""
    connection = connect(server)
    connection.request("POST", "/v1/responses", json.dumps(fields), {"Content-Type": "application/json"})
    data = connection.getresponse().read()
    connection.close()
    return data


def test_a_request_behind_another_is_not_lost(server: Server) -> None:
    """Its beginning came together with the end of the first, and was read with it."""
    connection, first = open_socket(server), b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    connection.sendall(first + first[:12])
    assert b'"version"' in connection.recv(1 << 16)
    kill_frontends(server)
    connection.sendall(first[12:])
    assert b'"version"' in connection.recv(1 << 16)


def test_requests_behind_one_another_get_their_own_answers(server: Server) -> None:
    """They came together; when their frontend dies the first is answered, and the second is being answered."""
    connection = open_socket(server)
    body = {**LONG, "stream": True, "stream_options": {"include_usage": True}}
    connection.sendall(request({"max_tokens": 4}).replace(b"Connection: close\r\n", b"") + request(body))
    data = b""
    while data.count(b"HTTP/1.1 200 OK") < 2 or b"data: " not in data:
        data += connection.recv(1000)
    kill_frontends(server)
    first, head, rest = (data + read_all(connection)).rpartition(b"HTTP/1.1 200 OK")
    assert b"Paris" in first and first.count(b"HTTP/1.1") == 1 and all(texts(head + rest))


def test_an_answer_that_is_read_late_is_not_lost(server: Server) -> None:
    """The server is done with it, and most of it waits in its buffers when the frontend dies."""
    connection = open_socket(server)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ids = json.dumps({"tokens": [35] * 400_000}).encode()
    connection.sendall(b"POST /detokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(ids) + ids)
    data = connection.recv(100)
    assert "Paris" in complete(connect(server)) and "Paris" in complete(connect(server))
    kill_frontends(server)
    connection.settimeout(WAIT_S)
    try:
        while b'"}' not in data[-4:] and (piece := connection.recv(1 << 16)):
            data += piece
    except ConnectionResetError:
        return  # more waited than is kept
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    assert (
        length and len(body) == int(length[1]) and set(json.loads(body)["prompt"]) == set(json.loads(body)["prompt"][0])
    )


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_chunked_request_comes_to_rest(server: Server, size: int) -> None:
    connection = connect(server)
    body = json.dumps({"prompt": "The capital of France is", "max_tokens": 4, "user": "x" * size}).encode()
    for _ in range(2):
        pieces = iter([body[:size], body[size:]])
        connection.request("POST", "/v1/completions", pieces, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
        assert connection.getresponse().read()
        kill_frontends(server)
    assert "Paris" in complete(connection)


@pytest.mark.parametrize("dies", [False, True])
def test_a_chunk_that_is_too_long_is_refused_before_it_comes(server: Server, dies: bool) -> None:
    """Long before anybody gives up waiting for it."""
    connection = open_socket(server)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
    # both have read what was there
    assert "Paris" in complete(connect(server)) and "Paris" in complete(connect(server))
    if dies:
        kill_frontends(server)
    connection.sendall(b"ffffffffffffffff\r\n")
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413") and "--max-body-bytes" in json.loads(body)["error"]["message"]


LONG: dict[str, object] = {"max_tokens": 400, "ignore_eos": True, "n": 2, "temperature": 1.0, "seed": 5}


def texts(answer: bytes) -> list[str]:
    """What a client makes of a stream, framing and all: the choices' texts. AssertionError if it is not whole."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    content = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        chunk, end, body = body[: int(size, 16)], body[int(size, 16) :][:2], body[int(size, 16) + 2 :]
        assert end == b"\r\n"
        content += chunk
        if not chunk:
            break
    assert not body
    *events, done, rest = content.split(b"\n\n")
    assert done == b"data: [DONE]" and not rest
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")] == [800]
    found = ["", ""]
    ends = [0, 0]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        found[choice["index"]] += choice["text"]
        ends[choice["index"]] += choice["finish_reason"] is not None
    assert ends == [1, 1]
    return found


@pytest.fixture(scope="module")
def expected(server: Server) -> list[str]:
    """The texts of LONG's choices."""
    whole = open_socket(server)
    whole.sendall(request(LONG))
    return [choice["text"] for choice in json.loads(read_all(whole).partition(b"\r\n\r\n")[2])["choices"]]


@pytest.mark.parametrize("kills", [2, *slow(1, 5)])
def test_streams_that_have_begun_go_on_at_the_exact_byte(server: Server, expected: list[str], kills: int) -> None:
    """Frontends die in the middle of them; some clients read slowly, so that much is not sent yet.

    Seconds of computing: what is generated must outlast the deaths.
    """
    body = {**LONG, "stream": True, "stream_options": {"include_usage": True}}
    connections = [open_socket(server) for _ in range(8)]
    for connection in connections:
        connection.sendall(request(body))
    answers = [connection.recv(1000) for connection in connections]
    for _ in range(kills):
        kill_frontends(server)
        answers = [answer + connection.recv(3000) for answer, connection in zip(answers, connections, strict=True)]
    for answer, connection in zip(answers, connections, strict=True):
        assert texts(answer + read_all(connection)) == expected


def test_a_stream_that_goes_on_can_be_broken_off(server: Server) -> None:
    connection = open_socket(server)
    connection.sendall(request({**LONG, "max_tokens": 1500, "stream": True}))
    assert connection.recv(1000)
    kill_frontends(server)
    assert connection.recv(1000)
    connection.close()
    watch = connect(server)

    def has_ended() -> bool:
        watch.request("GET", "/metrics")
        return b'vllm:num_requests_running{engine="0",model_name="actorserve-demo"} 0.0' in watch.getresponse().read()

    until(has_ended)


def test_frontends_share_the_load(server: Server) -> None:
    connections = [connect(server) for _ in range(20)]
    assert all("Paris" in complete(connection) for connection in connections)
    with open_socket(server):
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
    gone.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    assert "Paris" in complete(connect(server)) and "Paris" in complete(connect(server))
    until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < before + 50)


def health(connection: http.client.HTTPConnection) -> int:
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (ConnectionError, http.client.HTTPException):  # refused before it had asked
        return 503


@pytest.mark.parametrize("limit", ["option", "descriptors"])
def test_too_many_are_refused_and_room_is_used_again(limit: str) -> None:
    most = ("--max-connections", "20") if limit == "option" else ()
    program, few = ("", None) if limit == "option" else (FEW_DESCRIPTORS, {"FAKE_DESCRIPTORS": "150"})
    with Server(*most, "--worker", "scripted", program=program, env=few) as server:
        connections = [connect(server) for _ in range(60)]
        statuses = [health(connection) for connection in connections]
        assert statuses.count(200) >= 20 and set(statuses) == {200, 503}
        for connection in connections:
            connection.close()
        deadline = time.monotonic() + 30.0
        while health(connect(server)) != 200:
            assert time.monotonic() < deadline, "no room came back"
