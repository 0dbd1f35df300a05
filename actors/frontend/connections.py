"""A frontend's connections: taken from the supervisor, who holds each one too, served by aiohttp, given back.

A predecessor's connection goes on at the byte where it stood. What that means follows from what the kernel says was
read and written, and from the records of what came (shm/journal.py) and of what was handed over (shm/answers.py):
- nothing is under way: it is served as any other;
- a request has begun, and nothing of its answer was handed over: it is read again from the journal, and its handler
  goes on with the slots that it has, or does it again;
- all of an answer was handed over: what the kernel has not taken of it is written, and nothing is under way;
- a stream has begun: its request is read again, and its handler goes on with the same slots behind what was given out.
All others are reset: answers that are not streams and were begun, and requests of which not all bytes are there.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import re
import socket
import struct
import termios
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

from actorserve.http.resume import Predecessor
from actorserve.http.server import Connection as HttpConnection
from actorserve.shm.answers import Answers
from actorserve.shm.journal import Journal

from .tap import Tap, read_predecessor

HANDED = struct.Struct("<II")
BYTES_ACKED, BYTES_RECEIVED = 120, 128  # offsets in struct tcp_info (linux/tcp.h; Linux 4.2)
TCP_INFO_BYTES = 192
NOT_TOLD = 1 << 62  # more than any connection has: nothing that stands in shared memory agrees with it
LONGEST_HEAD = 64 << 10
LAST_CHUNK = b"0\r\n\r\n"  # of a chunked body
RESET = struct.pack("ii", 1, 0)  # linger for no time: closing resets
BUSY_S = 0.001  # the supervisor's end is full: nothing tells when it reads
log = logging.getLogger("connections")


@dataclass(frozen=True)
class Left:
    """What a predecessor has left undone on a connection."""

    request: bytes = b""  # to be read again
    predecessor: Predecessor | None = None  # of the answer
    unsent: bytes = b""  # was handed over, and the kernel has not taken it
    behind: bytes = b""  # of a next request, which nobody has looked at


NOTHING = Left()


class Connection(HttpConnection):
    """aiohttp's protocol, which keeps what comes in the journal until it is answered, and says when all is over."""

    def __init__(
        self, pool: ConnectionPool, connection: socket.socket, number: int, read: int, state: Left, options: Any
    ) -> None:
        super().__init__(pool.server, **options)
        self.record: Tap | None = None
        self._left = state
        self._pool = pool
        self._socket = connection
        self._number = number
        self._read = read
        self._resting = not state.request
        self._head = b""  # of the request that was begun, as long as its end has not come
        self._body_at = -1  # bytes read when its body begins; -1: not known
        self._end = b""  # the last bytes that came
        self._read -= len(state.behind)
        if state.request:
            self._read -= len(state.request)
            self._look_at(state.request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        left = self._left
        self.record = Tap(
            cast(asyncio.Transport, transport), self._pool.answers, self._number, left.predecessor, left.unsent
        )
        super().connection_made(cast(asyncio.Transport, self.record))
        if not self._read:
            self._pool.answers.begin(self._number, written_so_far(self._socket))
        if left.predecessor is None:
            self.record.go_on()
        if left.request:
            super().data_received(left.request)
        self._left = NOTHING
        self.data_received(left.behind)

    def data_received(self, data: bytes) -> None:
        if data:  # aiohttp calls it with nothing, to go on with what it has
            journal = self._pool.journal
            if self._resting:
                self._resting = False
                self._head, self._body_at = b"", -1
                journal.begin(self._number)
                self._pool.answers.begin(self._number, self._written())
            self._look_at(data)
            journal.append(self._number, data)
        super().data_received(data)

    def _written(self) -> int:
        """Bytes that were handed over: to the kernel, or to the transport for it."""
        waiting = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return written_so_far(self._socket) + waiting

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
        record = self.record
        if record is not None and isinstance(resp, web.Response) and not resp.prepared:
            record.note_end()  # aiohttp writes head and body of these as one piece
        finished = await super().finish_response(request, resp, start_time)
        if record is not None and record.muted:  # what its predecessor had begun could not be gone on with
            record.abort()
        elif self._was_all(request):
            self._resting = True
            self._pool.rest(self._number, self._read)
        elif record is not None:
            record.keep_no_more()
        return finished

    def _was_all(self, request: web.BaseRequest) -> bool:
        """Nothing of a next request was read. Where that cannot be said, the connection does not come to rest again."""
        if "Transfer-Encoding" in request.headers:
            return self._end == LAST_CHUNK
        return self._read == self._body_at + (request.content_length or 0)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._pool.rest(self._number, self._read)
        self._pool.lost(self._number)


class ConnectionPool:
    """The frontend's end of its channel."""

    def __init__(self, channel: socket.socket, journal: Journal, answers: Answers, server: web.Server) -> None:
        self._channel = channel
        self.journal = journal
        self.answers = answers
        self.server = server
        self._loop = asyncio.get_running_loop()
        self._closed: list[int] = []
        self._attaching: set[asyncio.Task[None]] = set()
        channel.setblocking(False)
        self._loop.add_reader(channel, self._take)

    def rest(self, number: int, read: int) -> None:
        """Nothing is under way on this connection."""
        self.journal.rest(number, read)
        self.answers.forget(number)

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
                self.rest(number, 0)
                self._serve(connection, number, 0, NOTHING)

    def _resume(self, connection: socket.socket, number: int, read: int) -> None:
        """Go on with a predecessor's connection, or reset it."""
        left = self._what_is_left(number, read, written_so_far(connection))
        if left is not None:
            self._serve(connection, number, read, left)
            return
        log.info("a connection in the middle of an answer is reset")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()
        self.lost(number)

    def _what_is_left(self, number: int, read: int, written: int) -> Left | None:
        """What a predecessor has left undone; None if that cannot be told."""
        if number >= self.answers.count or (unsent := self.answers.unsent(number, written)) is None:
            return None
        if self.journal.is_at_rest(number, read):
            return Left(unsent=unsent)
        request = self.journal.request(number, read)
        if request is None:
            return None
        if self.answers.untouched(number):
            return Left(request, read_predecessor(self.answers, number), unsent)
        if self.answers.is_complete(number):
            behind = behind_first(request)
            if behind is None:
                return None
            self.rest(number, read - len(behind))
            return Left(unsent=unsent, behind=behind)
        predecessor = read_predecessor(self.answers, number)
        return Left(request, predecessor, unsent) if predecessor is not None else None

    def _serve(self, connection: socket.socket, number: int, read: int, left: Left) -> None:
        task = self._loop.create_task(self._attach(connection, number, read, left))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, connection: socket.socket, number: int, read: int, left: Left) -> None:
        options = {"loop": self._loop, **self.server._kwargs}  # what AppRunner was given for its own connections

        def protocol() -> Connection:
            return Connection(self, connection, number, read, left, options)

        try:
            await self._loop.connect_accepted_socket(protocol, connection)
        except OSError:  # it has broken off meanwhile
            connection.close()
            self.lost(number)


def behind_first(data: bytes) -> bytes | None:
    """What stands behind the first request; None where that is not plain to see."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return None
    if re.search(rb"\r\ntransfer-encoding:", head, re.IGNORECASE):
        return b"" if body.endswith(LAST_CHUNK) else None
    length = re.search(rb"\r\ncontent-length:[ \t]*(\d+)", head, re.IGNORECASE)
    size = int(length[1]) if length else 0
    return body[size:] if len(body) >= size else None


def read_so_far(connection: socket.socket) -> int:
    """Bytes that were read from this connection by whoever had it: those that came less those that wait."""
    came, waiting = _counts(connection, BYTES_RECEIVED, termios.FIONREAD)
    return came - waiting


def written_so_far(connection: socket.socket) -> int:
    """Bytes that the kernel was given for this connection: those that the client has, and those that wait."""
    acknowledged, waiting = _counts(connection, BYTES_ACKED, termios.TIOCOUTQ)
    return acknowledged + waiting


def _counts(connection: socket.socket, offset: int, queue: int) -> tuple[int, int]:
    """A count of tcp_info and the length of a queue, of the same moment; NOT_TOLD where the kernel does not count."""
    while True:
        before = fcntl.ioctl(connection, queue, b"\0" * 4)
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        if len(info) < offset + 8:
            return NOT_TOLD, 0
        if fcntl.ioctl(connection, queue, b"\0" * 4) == before:  # nothing moved between the two questions
            return int(struct.unpack_from("<Q", info, offset)[0]), int(struct.unpack("i", before)[0])
