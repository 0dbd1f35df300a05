"""A frontend's connections: taken from the supervisor, who holds each one too, served by aiohttp, given back.

A predecessor's connection goes on if it stood between two requests, which is told from what the kernel says was read
and what stood in shared memory when the last answer was out; one in the middle of a request is reset.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import termios
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

HANDED = struct.Struct("<II")
BYTES_RECEIVED = 128  # offset of tcpi_bytes_received in struct tcp_info (linux/tcp.h)
TCP_INFO_BYTES = 192
RESET = struct.pack("ii", 1, 0)  # linger for no time: closing resets
log = logging.getLogger("connections")


class Connection(RequestHandler):
    """aiohttp's protocol, which says how much was read when nothing is under way, and when all is over."""

    def __init__(
        self, pool: ConnectionPool, number: int, received: int, server: web.Server, **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._pool = pool
        self._number = number
        self._received = received

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    async def finish_response(self, *arguments: Any) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(*arguments)
        if not self._messages and self.transport is not None and not self.transport.get_write_buffer_size():
            self._pool.rest(self._number, self._received)
        return finished

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._pool.lost(self._number)


class ConnectionPool:
    """The frontend's end of its channel. `words` says how much of each connection was read when it last rested."""

    def __init__(self, channel: socket.socket, words: memoryview, server: web.Server) -> None:
        self._channel = channel
        self._words = words
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._closed: list[int] = []
        self._attaching: set[asyncio.Task[None]] = set()
        channel.setblocking(False)
        self._loop.add_reader(channel, self._take)

    def rest(self, number: int, received: int) -> None:
        """Nothing is under way on this connection."""
        self._words[number] = received

    def lost(self, number: int) -> None:
        """It is closed here; the supervisor closes its own end of it."""
        self._closed.append(number)
        if len(self._closed) == 1:
            self._loop.call_soon(self._give_back)

    def _give_back(self) -> None:
        data = struct.pack(f"<{len(self._closed)}I", *self._closed)
        try:
            self._channel.send(data)
        except BlockingIOError:
            self._loop.call_later(0.001, self._give_back)  # the supervisor is busy: nothing tells when it reads
            return
        self._closed.clear()

    def _take(self) -> None:
        """Connections that the supervisor hands over."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._channel, HANDED.size, 1)
            except BlockingIOError:
                return
            if not data:  # the supervisor has let go: it is dead, or about to end this process
                self._loop.remove_reader(self._channel)
                return
            number, resumed = HANDED.unpack(data)
            connection = socket.socket(fileno=fds[0])
            if not resumed:
                self._words[number] = 0
            elif read_so_far(connection) != self._words[number]:
                log.info("a connection in the middle of a request is reset")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()
                self.lost(number)
                continue
            task = self._loop.create_task(self._attach(connection, number))
            self._attaching.add(task)
            task.add_done_callback(self._attaching.discard)

    async def _attach(self, connection: socket.socket, number: int) -> None:
        received = self._words[number]
        options = self._server._kwargs  # what AppRunner was given for its own connections

        def protocol() -> Connection:
            return Connection(self, number, received, self._server, loop=self._loop, **options)

        try:
            await self._loop.connect_accepted_socket(protocol, connection)
        except OSError:  # it has broken off meanwhile
            connection.close()
            self.lost(number)


def read_so_far(connection: socket.socket) -> int:
    """Bytes that were read from this connection by whoever had it: those that came less those that wait."""
    while True:
        waiting = _waiting(connection)
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        if len(info) < BYTES_RECEIVED + 8:
            return -1
        came = int(struct.unpack_from("<Q", info, BYTES_RECEIVED)[0])
        if _waiting(connection) == waiting:  # nothing came between the two questions
            return came - waiting


def _waiting(connection: socket.socket) -> int:
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, b"\0" * 4))[0])
