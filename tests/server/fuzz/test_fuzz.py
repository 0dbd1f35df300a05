"""Bytes that no client sends, at a running server: it answers 4xx or hangs up, and is as it was afterwards.

Everything is drawn from a seed. After all of it the same processes live, with as many open descriptors and hardly more
memory, nothing runs, and a normal request gets its answer.
"""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPResponse
from typing import Any

import pytest

from tests.server.fuzz.test_schemathesis import check_unharmed
from tests.support.client import http_client, open_socket
from tests.support.fuzz_bodies import BODIES, FIELDS, NUMBERS, START
from tests.support.selection import slow
from tests.support.server import WAIT_S, Server

SEED = 20261121
ANSWER_S = 20.0
GROWTH = 48 << 20  # bytes that a process may have more than before: caches fill
END = b"\r\n\r\n" + bytes(4096)
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--threads", "1", "--max-num-seqs", "16", "--max-body-bytes", "1000000") as made:
        normal(made)
        yield made


@pytest.fixture(autouse=True)
def unharmed(server: Server) -> Iterator[None]:
    """Each test leaves the server as it was."""
    pids, before = server.pids(), sizes(server)
    yield
    normal(server)
    check_unharmed(server, pids)
    deadline = time.monotonic() + WAIT_S
    while grown := worse(before, sizes(server)):
        assert time.monotonic() < deadline, f"(descriptors, bytes) before and now: {grown}"
        time.sleep(0.02)  # nothing tells


def sizes(server: Server) -> dict[int, tuple[int, int]]:
    """Open descriptors and own memory of every process."""
    found = {}
    for process in server.processes():
        with process.oneshot():
            memory = process.memory_info()
            found[process.pid] = process.num_fds(), memory.rss - memory.shared
    return found


def worse(
    before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]
) -> dict[int, tuple[tuple[int, int], tuple[int, int]]]:
    """The processes that hold more than before."""
    return {
        pid: (before[pid], size)
        for pid, size in now.items()
        if pid in before and (size[0] > before[pid][0] or size[1] > before[pid][1] + GROWTH)
    }


def normal(server: Server) -> None:
    """A request like any other."""
    with http_client(server) as client:
        answer = client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] >= 1


def talk(server: Server, raw: bytes, end: bool = False) -> bytes:
    """Send all, and read until the server hangs up; `end`: what has begun is over with what is no request."""
    answer = b""
    with closing(open_socket(server)) as connection, suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(raw)  # it may hang up before it has read all
        if end:
            first(server, HEALTH)  # what came before has been read by then, and is not refused with what follows
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(END)
        while part := connection.recv(1 << 16):
            answer += part
    return answer


def first(server: Server, raw: bytes) -> tuple[int, bytes]:
    """The first answer's status and body, whatever the server does then."""
    with closing(open_socket(server)) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):  # it may know enough before it has read all
            connection.sendall(raw)
        response = HTTPResponse(connection)
        response.begin()
        return response.status, response.read()


def request(body: bytes, path: str = "/v1/chat/completions", *headers: bytes, length: int | None = None) -> bytes:
    """The bytes of a POST; the connection ends with it."""
    lines = [
        f"POST {path} HTTP/1.1".encode(),
        b"Host: x",
        b"Connection: close",
        b"Content-Type: application/json",
        b"Content-Length: %d" % (len(body) if length is None else length),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def statuses(answer: bytes) -> list[int]:
    """Of all responses in it."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] ([0-9]{3}) ", answer)]


def check_refused(server: Server, raw: bytes) -> None:
    """With a status of its own and a reason."""
    status, body = first(server, raw)
    assert 400 <= status < 500, (status, body[:300])
    assert json.loads(body)["error"]["message"]


# --- bytes -----------------------------------------------------------------------------------------------------------


def drawn(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 3000))


def lines_drawn(rng: random.Random) -> bytes:
    """Something like a request's head."""
    words = [b"GET", b"POST", b" ", b" ", b"/", b"/v1/models", b"HTTP/1.1", b"\r\n", b"\n", b"\r", b":", b"\0", b"\xff"]
    words += [b"Content-Length", b"Transfer-Encoding", b"chunked", b"Host", b"-1", b"9" * 40, b"\t", b"Expect: "]
    return b"".join(rng.choices(words, k=rng.randrange(1, 60))) + b"\r\n\r\n"


def flipped(rng: random.Random) -> bytes:
    """A request in which some bytes are others."""
    raw = bytearray(request(json.dumps(CHAT).encode()))
    for _ in range(rng.randrange(1, 6)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


@pytest.mark.parametrize("draw", [drawn, lines_drawn, flipped])
def test_bytes(server: Server, draw: Callable[[random.Random], bytes]) -> None:
    rng = random.Random(SEED)
    for _ in range(80):
        raw = draw(rng)
        found = statuses(talk(server, raw, end=True))
        assert found and all(status < 500 for status in found), (raw, found)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
        request(b"{}", "/tokenize", b"Content-Length: 3"),
        request(b"{}", "/tokenize", b"Transfer-Encoding: chunked"),
        request(b"{}", "/tokenize", b"Transfer-Encoding: gzip"),
        request(b"{}", "/tokenize", b"Content-Encoding: gzip"),
        request(b"", "/tokenize", length=-1),
        request(b"", "/tokenize", length=1 << 80),
        request(b"", "/tokenize", length=1 << 40),
        request(b"{}", "/tokenize", b"X\0Y: z"),
        request(b"{}", "/tokenize", b"X-Request-Id: \xff\xfe\r\nX-Request-Id: \r"),
    ],
    ids=lambda head: repr(head[:12] + head[-12:]),
)
def test_heads(server: Server, head: bytes) -> None:
    check_refused(server, head)


def test_chunks(server: Server) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    good = b'd\r\n{"prompt":"a"\r\n1\r\n}\r\n0\r\n\r\n'
    assert statuses(talk(server, head + good)) == [200]
    rng = random.Random(SEED)
    bad = [b"-1\r\n", b"x\r\n", b"f" * 40 + b"\r\n", b"5;" + b"e" * 100_000 + b"\r\n", b"2\r\n{}XX0\r\n"]
    for chunk in [*bad, *(rng.randbytes(200) for _ in range(30))]:
        found = statuses(talk(server, head + chunk, end=True))
        assert found and all(status < 500 for status in found), (chunk[:100], found)
    check_refused(server, head + b"%x\r\n" % (1 << 20) + b"a" * (1 << 20) + b"\r\n0\r\n\r\n")


def test_pipelines(server: Server) -> None:
    """What stands behind something that is wrong is never taken for a request."""
    last = request(b'{"prompt":"a"}', "/tokenize")
    good = last.replace(b"Connection: close\r\n", b"")
    assert statuses(talk(server, good * 19 + last)) == [200] * 20
    wrong = talk(server, good * 3 + b"\0\r\n\r\n" + good)
    assert statuses(wrong)[-1] == 400 and statuses(wrong).count(400) == 1
    short = talk(server, good + good.replace(b"Content-Length: 14", b"Content-Length: 4") + good)
    assert statuses(short)[-1] == 400 and statuses(short).count(200) <= 1
    smuggled = talk(server, request(b"0\r\n\r\n" + good, "/tokenize", b"Transfer-Encoding: chunked") + good)
    assert 200 not in statuses(smuggled)


# --- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:8].decode())
def test_huge_numbers(server: Server, number: bytes) -> None:
    bodies = [START + b',"%s":%s}' % (field, number) for field in FIELDS]
    for inner in (b'[{"role":"user","content":"a","x":%s}]' % number, b"%s" % number, b"[%s]" % number):
        bodies.append(b'{"max_tokens":2,"messages":%s,"metadata":%s}' % (inner, number))
    for body in bodies:
        status, answer = first(server, request(body))
        assert status in (200, 400), (body[:100], answer)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_bodies(server: Server, body: bytes) -> None:
    """Each is refused, and says why as JSON; by all paths that take a body."""
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        check_refused(server, request(body, path))


@pytest.mark.parametrize("field", [b'"logit_bias":{"%s":1}' % (b"1" * 5000), b'"%s":1,"n":"x"' % (b"a" * 500_000)])
def test_long_names(server: Server, field: bytes) -> None:
    check_refused(server, request(START + b"," + field + b"}"))


def test_what_is_odd_is_taken(server: Server) -> None:
    """Of a key that stands twice the last counts; null characters and old ids are a text like any other."""
    body = START + b',"max_tokens":1,"user":"a\\u0000b","request_id":"%s"}' % (b"r" * 200_000)
    status, answer = first(server, request(body))
    assert status == 200 and json.loads(answer)["usage"]["completion_tokens"] == 1


# --- time ------------------------------------------------------------------------------------------------------------


def test_half_requests(server: Server) -> None:
    """A client that goes away at each byte of its request."""
    raw = request(json.dumps(CHAT).encode())
    for end in range(len(raw)):
        with closing(open_socket(server)) as connection:
            connection.sendall(raw[:end])
    normal(server)


def test_slow_writers(server: Server) -> None:
    """One byte at a time, many at once; meanwhile others are answered."""
    raw = request(json.dumps(CHAT).encode())
    connections = [open_socket(server) for _ in range(20)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at, byte in enumerate(raw):
        for connection in connections:
            connection.sendall(bytes([byte]))
        if at % 100 == 0:
            normal(server)
    for connection in connections:
        answer = b"".join(iter(lambda connection=connection: connection.recv(1 << 16), b""))  # type: ignore[misc]
        assert statuses(answer) == [200]
        connection.close()


@pytest.mark.parametrize("reset", [*slow(False), True], ids=["closed", "reset"])
def test_readers_that_leave(server: Server, reset: bool) -> None:
    """At each point of a streamed answer."""
    body = json.dumps({**CHAT, "stream": True, "max_tokens": 4, "ignore_eos": True}).encode()
    whole = talk(server, request(body))
    assert whole.count(b"data: ") >= 4
    for end in [0, *range(1, len(whole), max(1, len(whole) // 60))]:
        with closing(open_socket(server)) as connection:
            if reset:
                linger = (1).to_bytes(4, "little") + bytes(4)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sendall(request(body))
            left = end
            while left > 0 and (part := connection.recv(left)):
                left -= len(part)
