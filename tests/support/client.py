"""The clients of tests, one for each purpose: bytes, a kept connection, JSON, and many streams at once."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import socket
import ssl
from contextlib import ExitStack, suppress
from typing import Any

import aiohttp
import httpx2 as httpx

from tests.support.server import Server
from tests.support.until import until

WAIT_S = 60.0
LOWEST_PORT, PORTS = 10_000, 22_000
AT_WORK = re.compile(r"^vllm:num_requests_(?:running|waiting)\{.*\} (?!0\.0$)", re.MULTILINE)
CAPITAL: dict[str, Any] = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}


def address(server: Server) -> tuple[str, int]:
    host, _, port = server.base_url.partition("://")[2].rpartition(":")
    return host, int(port)


def free_port(count: int = 1) -> int:
    """The first of so many in a row, for what a server does not pick by itself. It is none that the kernel gives to
    who asks for any, as others may do before the server is there; tests' processes are copies, also of a random state.
    """
    while True:
        first = LOWEST_PORT + secrets.randbelow(PORTS - count)
        with suppress(OSError), ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def open_socket(server: Server) -> socket.socket:
    return socket.create_connection(address(server), timeout=WAIT_S)


def connect(server: Server, context: ssl.SSLContext | None = None, source: str = "") -> http.client.HTTPConnection:
    """A connection that is open, and is not opened again where it is lost; `source` is the client's address."""
    from_where = (source, 0) if source else None
    connection = (
        http.client.HTTPConnection(*address(server), timeout=WAIT_S, source_address=from_where)
        if context is None
        else http.client.HTTPSConnection(*address(server), timeout=WAIT_S, source_address=from_where, context=context)
    )
    connection.connect()
    connection.auto_open = 0
    return connection


def complete(connection: http.client.HTTPConnection, headers: dict[str, str] | None = None, **fields: Any) -> str:
    """The text of a whole answer, to CAPITAL where `fields` say nothing else; the connection stays."""
    connection.request("POST", "/v1/completions", json.dumps({**CAPITAL, **fields}), headers or {})
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer
    return str(json.loads(answer)["choices"][0]["text"])


def http_client(server: Server, wait_s: float = WAIT_S) -> httpx.Client:
    return httpx.Client(base_url=server.base_url, timeout=wait_s)


def metrics_at_rest(client: httpx.Client) -> str:
    """/metrics once nothing runs and all that has ended is counted: a detokenizer that is late may tell an end before
    the scheduler has counted it. What runs is the first that it says then, so that a second look finds all of it.
    """
    until(lambda: not AT_WORK.search(client.get("/metrics").text))
    return client.get("/metrics").text


def http_session(
    server: Server, context: ssl.SSLContext | bool = True, wait_s: float = WAIT_S
) -> aiohttp.ClientSession:
    """For any number of streams at once. `context`: whom to trust; False for anybody."""
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    timeout = aiohttp.ClientTimeout(total=wait_s)
    return aiohttp.ClientSession(server.base_url, timeout=timeout, connector=connector)
