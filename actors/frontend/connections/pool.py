"""A frontend's connections: taken from the supervisor, who holds each one too, served by aiohttp, given back.

A predecessor's connection goes on at the byte where it stood. What that means follows from what the kernel says was
read and written, and from the records of what came (shm/journals/request_journal.py) and of what was handed over
(shm/journals/response_journal.py):
- nothing is under way: it is served as any other;
- a request has begun, and nothing of its answer was handed over: it is read again from the journal, and its handler
  goes on with the slots that it has, or does it again;
- all of an answer was handed over: what the kernel has not taken of it is written, and nothing is under way;
- a stream has begun: its request is read again, and its handler goes on with the same slots behind what was given out;
- it is a WebSocket: its handler goes on with what was written down of it (upgrade.py).
All others are reset: answers that are not streams and were begun, and requests of which not all bytes are there.

A connection of which nothing is answered yet can be moved: given to another frontend, for which it is a predecessor's.
This one writes and reads nothing more, closes its descriptor, and only then says so. If it dies before it has said so,
the connection is its successor's; afterwards it is the other's. Never is it anything but one's.

With TLS the session's keys die with the process: nothing is kept in the records, whose bytes are not those that the
kernel counts, no connection is moved, and a predecessor's is reset as soon as anything was read of it. It is otherwise
with those that come from the relay of HTTP/2, which has taken TLS off: they are kept as any without TLS.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from actorserve.http.errors import overloaded
from actorserve.http.routes import PROBE_PATHS
from actorserve.http.transport.header_timeout import LONGEST_HEAD
from actorserve.http.transport.json_response import error_response
from actorserve.http.transport.resume import Predecessor
from actorserve.shm.board.board import BoardWriter
from actorserve.shm.journals.request_journal import MOST_READ, RequestJournal
from actorserve.shm.journals.response_journal import ResponseJournal

from ...protocol.sockets.connection_handover import (
    CLOSED,
    HANDED_BYTES,
    MOST_GIVEN,
    NOT_TAKEN,
    PLAIN,
    RESERVED,
    RESUMED,
    CloseIdle,
    give_back,
    read_handed,
    reset_when_closed,
)
from ...runtime.in_flight import Ended
from .connection import NOT_KEPT, NOTHING_LEFT, RecordedConnection, Unfinished
from .framing import behind_first
from .protocol import RecordedProtocol
from .suspects import Refusal, Suspects
from .tcp_info import read_so_far, written_so_far
from .transport import read_predecessor
from .upgrade import UpgradeLog, what_is_left

LEAST_IDLE_S = 1.0  # before a connection is closed for somebody else: its client may be about to ask
MOST_TAKEN = 8  # connections, of one turn of the loop
HANDSHAKE_S = 10.0  # what a client gets for its part of the TLS handshake
GOODBYE_S = 5.0  # and to say that it has seen the end of TLS
BUSY_S = 0.001  # the supervisor's end is full: nothing tells when it reads
log = logging.getLogger("connections")


class ConnectionPool:
    """The frontend's end of its channel."""

    def __init__(
        self,
        channel: socket.socket,
        journal: RequestJournal,
        answers: ResponseJournal,
        server: web.Server,
        tls: ssl.SSLContext | None = None,
        answered: Callable[[web.BaseRequest, int], None] | None = None,
        longest_head: int = LONGEST_HEAD,
        upgrades: UpgradeLog | None = None,
        given_up: Callable[[list[int]], None] | None = None,
        ended: Ended = Ended.NEVER,
        status: BoardWriter | None = None,
    ) -> None:
        """With `tls` the records are of PLAIN connections alone. `answered` is told of each answer, with its status;
        `given_up` of slots whose connection came, and was over before anybody went on from them. `ended`: how the life
        before did; `status`: where it stands which request is tried again.
        """
        self._suspects = Suspects(journal, ended, status)
        self.settled = self._suspects.settled
        self.answered = answered
        self._given_up = given_up
        self.longest_head = longest_head
        self._channel = channel
        self.journal = journal
        self.answers = answers
        self.upgrades = upgrades or UpgradeLog()
        self.server = server
        self.spare = memoryview(bytearray(MOST_READ))  # for what is read and not kept
        self._loop = asyncio.get_running_loop()
        self._numbers: set[int] = set()  # that were taken and not given back
        self._secret: set[int] = set()  # of them, those with TLS
        self._given: list[tuple[int, int]] = []  # that are closed here, and where they go
        self._tls: dict[str, Any] = {}
        if tls is not None:
            times = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": GOODBYE_S}
            self._tls = {"ssl": tls, **times}
        self._attaching: set[asyncio.Task[None]] = set()
        self._connections: dict[int, RecordedConnection] = {}
        self.reserved: set[int] = set()  # numbers of connections for one question about the server itself
        self._in_want = False  # the last connection could not be taken
        self.taken = 0  # connections that were handed over so far
        channel.setblocking(False)
        self._loop.add_reader(channel, self._take)

    def use_certificates(self, context: ssl.SSLContext) -> None:
        """For connections from now on."""
        self._tls["ssl"] = context

    def rest(self, number: int, read: int) -> None:
        """Nothing is under way on this connection."""
        self.journal.rest(number, read)
        self.answers.forget(number)
        self.settled(number)

    @property
    def is_adopting(self) -> bool:
        """Are connections on their way here?"""
        try:
            return bool(self._attaching) or self._suspects.are_waiting or bool(self._channel.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    @property
    def may_go_on(self) -> bool:
        """Is there, or may there come, an answer of a predecessor's with which nobody goes on yet?"""
        records = (connection.record for connection in self._connections.values())
        return self.is_adopting or any(one is not None and one.predecessor is not None for one in records)

    def give_up(self, predecessor: Predecessor | None) -> None:
        """The connection is over on which somebody could have gone on with this."""
        if predecessor is not None and self._given_up is not None:
            self._given_up(predecessor.refs)

    def can_hand_over(self) -> bool:
        """Can a successor go on with all of them, byte for byte?"""
        return not self._numbers or (not self._secret and self.answers.are_kept(self._numbers))

    def can_move(self, number: int, connection: socket.socket) -> bool:
        """Is all that another frontend needs in the records, and nothing of an answer given out?"""
        return (
            number < self.answers.count
            and self.answers.untouched(number)
            and self.answers.unsent(number, written_so_far(connection)) is not None
            and self.journal.request(number, read_so_far(connection)) is not None
        )

    def lost(self, number: int, where: int = CLOSED) -> None:
        """It is closed here, or about to be in this turn; the supervisor closes its own end, or hands it on."""
        self._numbers.discard(number)
        self._secret.discard(number)
        self._connections.pop(number, None)
        self.reserved.discard(number)
        self.settled(number)
        if where == CLOSED:
            self.upgrades.forget(number)
        self._given.append((number, where))
        if len(self._given) == 1:
            self._loop.call_soon(self._give_back)

    def _give_back(self) -> None:
        """Say so, in the order in which it came about. What waits here for room is the successor's, should this die."""
        while self._given:
            some = self._given[:MOST_GIVEN]
            try:
                self._channel.send(give_back(some))
            except BlockingIOError:
                self._loop.call_later(BUSY_S, self._give_back)
                return
            del self._given[: len(some)]

    def _take(self) -> None:
        """Connections that the supervisor hands over."""
        for _ in range(MOST_TAKEN):  # what is left comes in the next turn of the loop
            try:
                data, fds, _, _ = socket.recv_fds(self._channel, HANDED_BYTES, 1)
            except BlockingIOError:
                return
            if not data:  # the supervisor has let go: it is dead, or about to end this process
                self._loop.remove_reader(self._channel)
                return
            handed = read_handed(data)
            if isinstance(handed, CloseIdle):
                self._close_idle(handed.most, handed.numbers)
                continue
            number, flags = handed
            self.taken += 1
            if not fds:
                self._give_back_untaken(number, flags)
                continue
            self._in_want = False
            self._numbers.add(number)
            if flags & RESERVED:
                self.reserved.add(number)
            if self._tls and not flags & PLAIN:
                self._secret.add(number)
            connection = socket.socket(fileno=fds[0])
            read = read_so_far(connection) if flags & RESUMED else 0
            if read:
                self._resume(connection, number, read)
            else:  # new, also if it was on its way to a predecessor
                self.rest(number, 0)
                self.upgrades.forget(number)
                self._serve(connection, number, 0, NOTHING_LEFT)

    def _give_back_untaken(self, number: int, flags: int) -> None:
        """The kernel has dropped the descriptor, since this process may have no more; the supervisor has another."""
        if not self._in_want:
            log.error("this process has no descriptor left for connections")
        self._in_want = True
        self.lost(number, NOT_TAKEN | flags)

    def _close_idle(self, count: int, numbers: Iterable[int]) -> None:
        """So many of these, if they are idle: somebody else needs them more."""
        since = {number: self._connections[number].idle_since() for number in numbers if number in self._connections}
        latest = self._loop.time() - LEAST_IDLE_S
        idle = sorted((at, number) for number, at in since.items() if at is not None and at <= latest)
        for _, number in idle[:count]:
            self._connections[number].force_close()

    def _resume(self, connection: socket.socket, number: int, read: int) -> None:
        """Go on with a predecessor's connection, or reset it."""
        left = self._what_is_left(number, read, written_so_far(connection))
        if left is not None:
            begin = partial(self._serve, connection, number, read, left)
            if not left.may_be_deadly:
                begin()
            elif not self._suspects.judge(number, begin):
                self._start(self._refuse(connection, number, read, left.request))
            return
        log.info("a connection in the middle of an answer is reset")
        if number < self.answers.count:
            self.give_up(read_predecessor(self.answers, number))
        reset_when_closed(connection)
        connection.close()
        self.lost(number)

    def _what_is_left(self, number: int, read: int, written: int) -> Unfinished | None:
        """What a predecessor has left undone; None if that cannot be told."""
        if (
            number in self._secret
            or number >= self.answers.count
            or (unsent := self.answers.unsent(number, written)) is None
        ):
            return None
        if self.journal.is_upgraded(number):
            return self._what_is_left_upgraded(number, read, unsent)
        if self.journal.is_at_rest(number, read):
            self.rest(number, read)
            return Unfinished(unsent=unsent)
        request = self.journal.request(number, read)
        if request is None:
            return None
        if not self.journal.is_begun(number):
            self.journal.take_over(number, request)
            return Unfinished(unsent=unsent, behind=request)
        if not self.answers.untouched(number) and self.answers.is_complete(number):
            return self._behind(number, read, request, unsent)
        predecessor = read_predecessor(self.answers, number)
        if predecessor is None and not self.answers.untouched(number):
            return None
        if self.answers.untouched(number):
            self.answers.settle(number)
        self.journal.take_over(number, request)
        return Unfinished(request, predecessor, unsent)

    def _what_is_left_upgraded(self, number: int, read: int, unsent: bytes) -> Unfinished | None:
        """The same of a WebSocket."""
        kept = self.upgrades.find(number)
        came = self.journal.since(number, kept.start, read) if kept is not None else None
        if kept is None or came is None:
            return None
        self.journal.take_over(number, came[0])
        none = Predecessor([], 0, 0, [], True, True, False)
        before = read_predecessor(self.answers, number) or none
        session = what_is_left(kept, self.answers.committed(number))
        return Unfinished(kept.head, before, unsent, came[1], session)

    def _behind(self, number: int, read: int, request: bytes, unsent: bytes) -> Unfinished | None:
        """All of an answer was handed over; something of a next request may have come."""
        behind = behind_first(request)
        if behind is None:
            return None
        if behind:
            self.answers.forget(number)
            self.journal.take_over(number, request, len(request) - len(behind))
        else:
            self.rest(number, read)
        return Unfinished(unsent=unsent, behind=behind)

    def _serve(self, connection: socket.socket, number: int, read: int, left: Unfinished) -> None:
        self._start(self._attach(connection, number, read, left))

    async def _refuse(self, connection: socket.socket, number: int, read: int, request: bytes) -> None:
        """Of a request that is given up."""

        def lost() -> None:
            self.rest(number, read)
            self.lost(number)

        try:
            await self._loop.connect_accepted_socket(lambda: Refusal(request, lost), connection)
        except OSError:  # it has broken off meanwhile
            connection.close()
            lost()

    def _start(self, attaching: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(attaching)
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, connection: socket.socket, number: int, read: int, left: Unfinished) -> None:
        options = {"loop": self._loop, **self.server._kwargs}  # what AppRunner was given for its own connections
        secret = number in self._secret

        def protocol() -> RecordedProtocol:
            place = NOT_KEPT if secret else number
            self._connections[number] = RecordedConnection(self, connection, number, read, left, options, place)
            return RecordedProtocol(self._connections[number], self, place)

        try:
            await self._loop.connect_accepted_socket(protocol, connection, **(self._tls if secret else {}))
        except OSError:  # it has broken off meanwhile, or does not speak TLS as it should
            connection.close()
            self.give_up(left.predecessor)
            self.lost(number)


@web.middleware
async def only_about_the_server(request: web.Request, handler: Handler) -> web.StreamResponse:
    """On a connection of the reserve one question about the server itself is answered, and nothing else."""
    if not isinstance(request.protocol, RecordedConnection) or not request.protocol.is_reserved:
        return await handler(request)
    if request.path in PROBE_PATHS:
        response = await handler(request)
    else:
        response = error_response(overloaded("The server has as many connections as it takes. Try again soon."))
    response.force_close()
    return response
