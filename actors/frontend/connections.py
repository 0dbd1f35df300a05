"""A frontend's connections: taken from the supervisor, who holds each one too, served by aiohttp, given back.

A predecessor's connection goes on where it stood between two requests, or where a request was begun and nothing of its
answer was written: that request is read again from the journal, and done again. Which of them it is follows from what
the kernel says was read and written; one in the middle of an answer is reset.
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

from actorserve.http.server import Connection as HttpConnection
from actorserve.shm.journal import Journal

HANDED = struct.Struct("<II")
BYTES_ACKED, BYTES_RECEIVED = 120, 128  # offsets in struct tcp_info (linux/tcp.h; Linux 4.2)
TCP_INFO_BYTES = 192
LONGEST_HEAD = 64 << 10
LAST_CHUNK = b"0\r\n\r\n"  # of a chunked body
RESET = struct.pack("ii", 1, 0)  # linger for no time: closing resets
BUSY_S = 0.001  # the supervisor's end is full: nothing tells when it reads
log = logging.getLogger("connections")


class Connection(HttpConnection):
    """aiohttp's protocol, which keeps what comes in the journal until it is answered, and says when all is over."""

    def __init__(
        self, pool: ConnectionPool, connection: socket.socket, number: int, read: int, unanswered: bytes, options: Any
    ) -> None:
        super().__init__(pool.server, **options)
        self._pool = pool
        self._socket = connection
        self._number = number
        self._read = read
        self._resting = not unanswered
        self._unanswered = unanswered
        self._head = b""  # of the request that was begun, as long as its end has not come
        self._body_at = -1  # bytes read when its body begins; -1: not known
        self._end = b""  # the last bytes that came
        if unanswered:
            self._read -= len(unanswered)
            self._look_at(unanswered)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._unanswered:
            super().data_received(self._unanswered)
            self._unanswered = b""

    def data_received(self, data: bytes) -> None:
        if data:  # aiohttp calls it with nothing, to go on with what it has
            journal = self._pool.journal
            if self._resting:
                self._resting = False
                self._head, self._body_at = b"", -1
                journal.begin(self._number, written_so_far(self._socket))
            self._look_at(data)
            journal.append(self._number, data)
        super().data_received(data)

    def _look_at(self, data: bytes) -> None:
        """Count what came, and find where the body begins."""
        if self._body_at < 0 and len(self._head) < LONGEST_HEAD:
            self._head += data
            at = self._head.find(b"\r\n\r\n")
            if at >= 0:
                self._body_at = self._read + len(data) - len(self._head) + at + 4
                self._head = b""
        self._read += len(data)
        self._end = data[-len(LAST_CHUNK) :]

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        transport = self.transport
        if self._was_all(request) and transport is not None and not transport.get_write_buffer_size():
            self._resting = True
            self._pool.journal.rest(self._number, self._read)
        return finished

    def _was_all(self, request: web.BaseRequest) -> bool:
        """Nothing of a next request was read. Where that cannot be said, the connection does not come to rest."""
        if "Transfer-Encoding" in request.headers:
            return self._end == LAST_CHUNK
        return self._read == self._body_at + (request.content_length or 0)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._pool.lost(self._number)


class ConnectionPool:
    """The frontend's end of its channel."""

    def __init__(self, channel: socket.socket, journal: Journal, server: web.Server) -> None:
        self._channel = channel
        self.journal = journal
        self.server = server
        self._loop = asyncio.get_running_loop()
        self._closed: list[int] = []
        self._attaching: set[asyncio.Task[None]] = set()
        channel.setblocking(False)
        self._loop.add_reader(channel, self._take)

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
            self._loop.call_later(BUSY_S, self._give_back)
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
            read = read_so_far(connection) if resumed else 0
            if read:
                self._resume(connection, number, read)
            else:  # new, also if it was on its way to a predecessor
                self.journal.rest(number, 0)
                self._serve(connection, number, 0, b"")

    def _resume(self, connection: socket.socket, number: int, read: int) -> None:
        """Go on with a predecessor's connection, or reset it."""
        if self.journal.is_at_rest(number, read):
            self._serve(connection, number, read, b"")
            return
        unanswered = self.journal.unanswered(number, read, written_so_far(connection))
        if unanswered is not None:
            self._serve(connection, number, read, unanswered)
            return
        log.info("a connection in the middle of an answer is reset")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()
        self.lost(number)

    def _serve(self, connection: socket.socket, number: int, read: int, unanswered: bytes) -> None:
        task = self._loop.create_task(self._attach(connection, number, read, unanswered))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, connection: socket.socket, number: int, read: int, unanswered: bytes) -> None:
        options = {"loop": self._loop, **self.server._kwargs}  # what AppRunner was given for its own connections

        def protocol() -> Connection:
            return Connection(self, connection, number, read, unanswered, options)

        try:
            await self._loop.connect_accepted_socket(protocol, connection)
        except OSError:  # it has broken off meanwhile
            connection.close()
            self.lost(number)


def read_so_far(connection: socket.socket) -> int:
    """Bytes that were read from this connection by whoever had it: those that came less those that wait."""
    came, waiting = _counts(connection, BYTES_RECEIVED, termios.FIONREAD)
    return came - waiting


def written_so_far(connection: socket.socket) -> int:
    """Bytes that the kernel was given for this connection: those that the client has, and those that wait."""
    acknowledged, waiting = _counts(connection, BYTES_ACKED, termios.TIOCOUTQ)
    return acknowledged + waiting


def _counts(connection: socket.socket, offset: int, queue: int) -> tuple[int, int]:
    """A count of tcp_info and the length of a queue, of the same moment."""
    while True:
        before = fcntl.ioctl(connection, queue, b"\0" * 4)
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        if fcntl.ioctl(connection, queue, b"\0" * 4) == before:  # nothing moved between the two questions
            return int(struct.unpack_from("<Q", info, offset)[0]), int(struct.unpack("i", before)[0])
