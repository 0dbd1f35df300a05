"""TLS on a frontend's side: handshakes and heads that do not come, readers that are slow, files that will not do."""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from aiohttp import web

from actorserve.actors.frontend.connections import pool
from actorserve.actors.frontend.connections.connection import MOST_UNSENT
from actorserve.actors.frontend.connections.pool import ConnectionPool
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.options.serving.tls import make_context
from actorserve.actors.protocol.sockets.connection_handover import CLOSED, GIVEN_BYTES, NEW, hand_over, read_given
from actorserve.http.transport import header_timeout
from actorserve.http.transport.body import SHORT, BodyBudget
from actorserve.http.transport.websocket import WebSocketChannel
from actorserve.shm.journals.request_journal import RequestJournal
from actorserve.shm.journals.response_journal import ResponseJournal
from tests.support.certificates import OPENSSL, Certificates, encrypt_key

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="certificates are made by the openssl command")
WAIT_S = 30.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


Runner = Callable[[Coroutine[Any, Any, None]], None]


class Side:
    """A frontend's connections with TLS, and the end of the channel that is the supervisor's. Inside of a loop."""

    def __init__(
        self, files: Certificates, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    ) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        certificate, key = map(str, files.server)
        journal = RequestJournal(RequestJournal.create(1, 4096), 0, 4096)
        context = make_context(Config(ssl_certfile=certificate, ssl_keyfile=key))
        self.pool = ConnectionPool(
            theirs, journal, ResponseJournal(ResponseJournal.create(1), 0), web.Server(handler), context
        )

    def connect(self, number: int) -> socket.socket:
        """A client's new connection, which the frontend is handed."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
            client = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        with accepted:
            socket.send_fds(self.channel, [hand_over(number, NEW)], [accepted.fileno()])
        client.setblocking(False)
        return client

    async def given_back(self) -> tuple[int, int]:
        ((number, where),) = read_given(await asyncio.get_running_loop().sock_recv(self.channel, GIVEN_BYTES))
        return number, where


def is_over(connection: socket.socket) -> bool:
    """Is its end plain or a reset, and nothing before it?"""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


async def no_handler(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("there is no request")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_handshake_that_does_not_come(files: Certificates, monkeypatch: pytest.MonkeyPatch, run: Runner) -> None:
    monkeypatch.setattr(pool, "HANDSHAKE_S", 0.05)

    async def scene() -> None:
        side = Side(files, no_handler)
        with side.connect(7) as client:
            assert await asyncio.wait_for(side.given_back(), WAIT_S) == (7, CLOSED)
            client.setblocking(True)
            assert is_over(client)

    run(scene())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\n"])
def test_a_head_that_does_not_come(
    files: Certificates, monkeypatch: pytest.MonkeyPatch, run: Runner, begun: bytes
) -> None:
    monkeypatch.setattr(header_timeout, "HEAD_S", 0.1)

    async def scene() -> None:
        side = Side(files, no_handler)
        reader, writer = await asyncio.open_connection(
            sock=side.connect(5), ssl=files.context(), server_hostname="localhost"
        )
        writer.write(begun)
        assert (await reader.read())[:12] == (b"HTTP/1.1 408" if begun else b"")
        writer.transport.abort()
        assert await side.given_back() == (5, CLOSED)

    run(asyncio.wait_for(scene(), WAIT_S))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_slow_reader_makes_its_writer_wait(files: Certificates, run: Runner) -> None:
    """Before more than a little waits in this process, as without TLS."""
    waiting: list[int] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        assert request.transport is not None
        while not request.protocol.writing_paused:
            request.transport.write(b"x" * (8 << 10))
            await asyncio.sleep(0)
        waiting.append(request.transport.get_write_buffer_size())
        raise ConnectionError("that is all")

    async def scene() -> None:
        side = Side(files, handler)
        client = side.connect(3)
        _, writer = await asyncio.open_connection(
            sock=client, ssl=files.context(), server_hostname="localhost", limit=1 << 10
        )
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while not waiting:
            await asyncio.sleep(0)
        assert 0 < waiting[0] < 2 * MOST_UNSENT
        writer.transport.abort()
        assert await asyncio.wait_for(side.given_back(), WAIT_S) == (3, CLOSED)

    run(asyncio.wait_for(scene(), WAIT_S))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("before", [[], ["/"], ["/", "/no_socket"]])
def test_a_websocket_behind_another_request_is_followed(files: Certificates, before: list[str], run: Runner) -> None:
    """Also where it is asked for before that one is answered, and a message has begun."""
    budget, held = BodyBudget(1 << 20), list[int]()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/socket":
            return web.Response()
        channel = WebSocketChannel(cast(web.Request, request), 1 << 20, (), budget)
        await channel.open()
        while not budget.held:
            await asyncio.sleep(0)
        held.append(budget.held)
        channel.release()
        return channel.response

    async def scene() -> None:
        side = Side(files, handler)
        _, writer = await asyncio.open_connection(
            sock=side.connect(5), ssl=files.context(), server_hostname="localhost"
        )
        socket_head = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        socket_head += f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
        asked = [
            f"GET {path} HTTP/1.1\r\nHost: x\r\n{socket_head if 'socket' in path else ''}\r\n"
            for path in (*before, "/socket")
        ]
        begun = struct.pack("!BBQ", 0x82, 0x80 | 127, 1 << 19) + bytes(4)
        writer.write("".join(asked).encode() + begun[:7])
        writer.write(begun[7:] + bytes(2 * SHORT))
        while not held:
            await asyncio.sleep(0)
        writer.transport.abort()

    run(asyncio.wait_for(scene(), WAIT_S))
    assert held[0] > SHORT


# --- files that will not do ----------------------------------------------------------------------------------------


def test_certificate_and_key_may_be_in_one_file(files: Certificates, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files.server[0].read_bytes() + files.server[1].read_bytes())
    assert make_context(Config(ssl_certfile=str(both))) is not None
    assert make_config({"ssl_certfile": str(both)}).scheme == "https"


def test_without_certificate_there_is_no_tls() -> None:
    assert make_context(Config()) is None and Config().scheme == "http"


def test_what_will_not_do_is_refused_by_name(files: Certificates, tmp_path: Path) -> None:
    junk, none = tmp_path / "junk", str(tmp_path / "none")
    junk.write_text("junk\n")
    certificate, key = map(str, files.server)
    locked = str(encrypt_key(files.server[1], "secret"))
    cases: list[tuple[dict[str, object], str]] = [
        ({"ssl_keyfile": key}, "--ssl-keyfile: there is no TLS without --ssl-certfile"),
        ({"ssl_ca_certs": certificate}, "--ssl-ca-certs: there is no TLS without --ssl-certfile"),
        ({"ssl_certfile": none}, f"--ssl-certfile: {none} cannot be read: No such file"),
        ({"ssl_certfile": str(junk), "ssl_keyfile": key}, f"--ssl-certfile: {junk} holds no certificate"),
        ({"ssl_certfile": certificate}, f"--ssl-keyfile: {certificate} holds no key"),
        ({"ssl_certfile": certificate, "ssl_keyfile": none}, f"--ssl-keyfile: {none} cannot be read"),
        ({"ssl_certfile": certificate, "ssl_keyfile": str(junk)}, f"--ssl-keyfile: {junk} holds no key"),
        (
            {"ssl_certfile": certificate, "ssl_keyfile": locked},
            f"--ssl-keyfile: {locked} holds no key that can be read",
        ),
        (
            {"ssl_certfile": certificate, "ssl_keyfile": str(files.client[1])},
            f"--ssl-keyfile: {files.client[1]} is not the key of {certificate}",
        ),
        (
            {"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_ca_certs": str(junk)},
            f"--ssl-ca-certs: {junk} holds no certificate",
        ),
    ]
    for values, words in cases:
        with pytest.raises(ConfigError, match=re.escape(words)):
            make_config(values)
