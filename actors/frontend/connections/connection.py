"""One connection as a frontend serves it: aiohttp's protocol with an account of what came and what was answered.

`RecordedProtocol` (protocol.py) stands between it and the transport: what the kernel reads goes straight into the
connection's record of the journal, so that at no moment it is nowhere but in this process.

Both records (shm/journals/request_journal.py, shm/journals/response_journal.py) speak of one request; who has the
connection writes all of their words. A client may send the next one before the handler knows that the last byte of its
answer is out. So it is noted that the first is over before the kernel is asked for anything more, not when its handler
ends. What a successor finds after
    the answer's last commit       all of an answer, and nothing behind its request: it notes the rest itself
    journal.rest, answers.forget   rest: as many bytes were read as then
    the kernel's read              a request that nobody has looked at, alone in the record
    answers.begin                  the same: what was handed over is told apart from the next answer by `committed`
    journal.begin                  a request that was looked at, and nothing of its answer
If the next one's beginning was read together with the end of the first (a client that does not wait for answers), it is
put in its place when the first is over. Nobody can go on with the connection while that is done, nor from then on if
the first came in chunks, whose end is not looked for.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from aiohttp import web

from actorserve.http.transport.body import AnnouncedLength
from actorserve.http.transport.header_timeout import TimedConnection
from actorserve.http.transport.resume import LeftSession, Predecessor
from actorserve.shm.journals.request_journal import RequestJournal
from actorserve.shm.journals.response_journal import ResponseJournal

from ...protocol.sockets.connection_handover import CLOSED, moved_to
from .framing import CHUNKED, LAST_CHUNK
from .tcp_info import written_so_far
from .transport import RecordedTransport
from .upgrade import UPGRADE, MessageEnds, Upgrade, UpgradeLog

NOT_KEPT = 1 << 32  # a place that no record has
MOST_UNSENT = 64 << 10  # bytes that wait here for a slow reader before its writer pauses; with TLS it would be more


class ConnectionOwner(Protocol):
    """What a connection needs of its frontend."""

    server: web.Server
    journal: RequestJournal
    answers: ResponseJournal
    upgrades: UpgradeLog
    spare: memoryview
    answered: Callable[[web.BaseRequest, int], None] | None
    reserved: set[int]
    longest_head: int

    def rest(self, number: int, read: int) -> None:
        """Nothing is under way on this connection."""

    def settled(self, number: int) -> None:
        """What a predecessor has left is no more suspect of its death."""

    def can_move(self, number: int, connection: socket.socket) -> bool:
        """Can another frontend go on with it?"""

    def give_up(self, predecessor: Predecessor | None) -> None:
        """It is closed here, and nobody has gone on with this."""

    def lost(self, number: int, where: int = CLOSED) -> None:
        """It is closed here."""


@dataclass(frozen=True)
class Unfinished:
    """What a predecessor has left undone on a connection."""

    request: bytes = b""  # to be read again
    predecessor: Predecessor | None = None  # of the answer
    unsent: bytes = b""  # was handed over, and the kernel has not taken it
    behind: bytes = b""  # of a next request, which nobody has looked at; of an upgraded connection, messages
    session: LeftSession | None = None  # of an upgraded connection

    @property
    def may_be_deadly(self) -> bool:
        """Had a predecessor only begun with the request?"""
        has_slots = self.predecessor is not None and bool(self.predecessor.refs)
        return bool(self.request) and self.session is None and not has_slots


NOTHING_LEFT = Unfinished()


class RecordedConnection(TimedConnection):
    """aiohttp's protocol, which keeps account of what comes and of what is answered, and says when all is over."""

    def __init__(
        self,
        pool: ConnectionOwner,
        connection: socket.socket,
        number: int,
        read: int,
        state: Unfinished,
        options: Any,
        place: int | None = None,
    ) -> None:
        """`place`: its number in the records, NOT_KEPT if it has none."""
        super().__init__(pool.server, **options)
        self.record: RecordedTransport | None = None
        self._left = state
        self._pool = pool
        self._socket = connection
        self._number = number
        self._place = number if place is None else place
        self._read = read
        self._resting = not state.request
        self._head = b""  # of the request that was begun, as long as its end has not come
        self._body_at = -1  # bytes read when its body begins; -1: not known
        self._end = b""  # the last bytes that came
        self.announced: AnnouncedLength | None = None  # of a body in chunks
        self._finishing: web.BaseRequest | None = None  # its handler has ended
        self._over: web.BaseRequest | None = None  # its end is noted, its handler has not ended
        self._rested_at = 0.0  # when nothing was under way any more
        self._where = CLOSED  # what the supervisor is told at its end
        self._upgrade: Upgrade | None = None
        self._incoming: MessageEnds | None = None  # of a WebSocket
        self._read -= len(state.behind)
        if state.request:
            self._read -= len(state.request)
            self._look_at(state.request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        left, below = self._left, cast(asyncio.Transport, transport)
        below.set_write_buffer_limits(MOST_UNSENT)
        self.record = RecordedTransport(
            below,
            self._pool.answers,
            self._place,
            left.predecessor,
            left.unsent,
            self._move,
        )
        self.record.upgraded = self._upgrade
        if left.request:
            self.record.settled = partial(self._pool.settled, self._number)
        self._rested_at = self._loop.time()
        super().connection_made(cast(asyncio.Transport, self.record))
        self._pool.answers.set_full(self._place, 0)
        if not self._read:
            self._pool.answers.begin(self._place, written_so_far(self._socket))
        if left.predecessor is None:
            self.record.go_on()
        if left.request:
            super().data_received(left.request)
        self._left = NOTHING_LEFT
        self.data_received(left.behind)

    def data_received(self, data: bytes) -> None:
        if data:  # aiohttp calls it with nothing, to go on with what it has
            if self._resting:
                self._begin(data)
            else:
                self._look_at(data)
        super().data_received(data)

    def _patience_s(self) -> float:
        """A connection of which a predecessor has answered something is as idle as any behind an answer."""
        return super()._patience_s() if not self._read else float(self.keepalive_timeout)

    @property
    def _longest_head(self) -> int:
        return self._pool.longest_head

    @property
    def is_reserved(self) -> bool:
        """There is no room for it beyond one question about the server itself."""
        return self._number in self._pool.reserved

    def idle_since(self) -> float | None:
        """Since when nothing has been under way; None if something is."""
        if not self._resting or self.record is None or self.record.is_closing():
            return None
        return self._rested_at if self._is_idle() and not self.record.get_write_buffer_size() else None

    def _begin(self, data: bytes) -> None:
        """Of a request: from here on the answers' record speaks of it."""
        self._resting = False
        self._head, self._body_at, self._end, self.announced = b"", -1, b"", None
        self._upgrade = self._incoming = None
        self._pool.answers.begin(self._place, self._written())
        self._pool.journal.begin(self._place)
        self._look_at(data)

    def _written(self) -> int:
        """Bytes that were handed over: to the kernel, or to the transport for it."""
        waiting = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return written_so_far(self._socket) + waiting

    def _look_at(self, data: bytes) -> None:
        """Count what came, and find where the body begins."""
        if self._incoming is not None:
            self._incoming.feed(data)
        if self.announced is not None:
            self.announced.follow(data)
        elif self._body_at < 0 and len(self._head) < self._longest_head:
            self._head = (self._head + data).lstrip(b"\r\n")  # empty lines before a request are no part of it
            at = self._head.find(b"\r\n\r\n")
            if at >= 0:
                self._body_at = self._read + len(data) - len(self._head) + at + 4
                if CHUNKED.search(self._head, 0, at):
                    self.announced = AnnouncedLength()
                    self.announced.follow(self._head[at + 4 :])
                elif UPGRADE.search(self._head, 0, at + 4):
                    self._begin_upgrade(self._head[: at + 4], self._head[at + 4 :])
                self._head = b""
        self._read += len(data)
        self._end = (self._end + data[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]

    def _begin_upgrade(self, head: bytes, behind: bytes) -> None:
        """The client asks for a WebSocket."""
        pool, number = self._pool, self._place
        if number >= pool.answers.count:
            return
        journals, left = (pool.journal, pool.answers), self._left.session
        upgrade = Upgrade(pool.upgrades, journals, number, head, self._body_at, left, lambda: self._read)
        upgrade.ends.feed(behind)
        self._upgrade, self._incoming = upgrade, upgrade.ends
        if self.record is not None:
            self.record.upgraded = upgrade

    def message_ends(self) -> MessageEnds:
        """Of a WebSocket, before its answer. Where no record of it is kept, it may have been asked for behind a request
        whose end was not looked for: what has come of its messages, aiohttp has.
        """
        if self._upgrade is None or self._incoming is None:
            self._incoming = MessageEnds(self._read, keeps=False)
            self._incoming.feed(self._message_tail)
        return self._incoming

    def before_reading(self) -> None:
        """Whatever is read next is of a next request, if this one came whole and all of its answer is handed over."""
        request, number, answers = self._finishing or self._current_request, self._place, self._pool.answers
        if self._resting or request is None or number >= answers.count:
            return
        if answers.is_complete(number) and self._was_all(request):
            self._over = request
            self._rest()

    def _rest(self) -> None:
        self._resting = True
        self._rested_at = self._loop.time()
        self._pool.rest(self._place, self._read)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        record, self._finishing = self.record, request
        if record is not None and isinstance(resp, web.Response) and not resp.prepared:
            record.note_end()  # aiohttp writes head and body of these as one piece
        finished = await super().finish_response(request, resp, start_time)
        over, self._over, self._finishing = self._over is request, None, None
        if self._where != CLOSED:
            return finished
        if record is not None and record.muted:  # what its predecessor had begun could not be gone on with
            record.abort()
        elif not over:  # otherwise the records are the next one's by now
            self._note_end(request, bool(finished[0].keep_alive))
        if self._pool.answered is not None:  # told now, when no successor would tell it again
            self._pool.answered(request, finished[0].status)
        return finished

    def _note_end(self, request: web.BaseRequest, stays: bool) -> None:
        """`stays`: the connection does."""
        if self._upgrade is not None and self._upgrade.is_begun:
            return
        if self._was_all(request):
            self._rest()
        elif not self._goes_on_behind(request) and self.record is not None:
            self.record.keep_no_more()
            self._upgrade = self._incoming = self.record.upgraded = None
            if not stays:
                self._pool.journal.give_up(self._place)

    def _was_all(self, request: web.BaseRequest) -> bool:
        """All of this one was read, and nothing of a next request. False also where that cannot be said."""
        if "Transfer-Encoding" in request.headers:
            return self._end == LAST_CHUNK and request.content.is_eof() and not self._messages
        return self._read == self._body_at + (request.content_length or 0)

    def _goes_on_behind(self, request: web.BaseRequest) -> bool:
        """From now on the records speak of what was read behind this request. False if its beginning cannot be told."""
        journal, number = self._pool.journal, self._place
        came = journal.request(number, self._read)
        if came is None or "Transfer-Encoding" in request.headers or self._body_at < 0:
            return False
        behind = self._read - self._body_at - (request.content_length or 0)
        if not 0 < behind < len(came):
            return False
        journal.take_over(number, came, len(came) - behind)
        self._read -= behind
        self._begin(came[-behind:])
        return True

    def _move(self, frontend: int) -> bool:
        """See http.transport.resume.Record."""
        if frontend < 0:
            raise ValueError("frontends count from 0")
        record = self.record
        if record is None or record.is_closing() or not self._pool.can_move(self._place, self._socket):
            return False
        self._where = moved_to(frontend)
        self._pool.answers.forget(self._place)  # slots of this frontend are not the other's
        record.let_go()
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._pool.answers.set_full(self._place, time.monotonic_ns())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._pool.answers.set_full(self._place, 0)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._where == CLOSED:
            self._pool.give_up(self.record.predecessor if self.record is not None else None)
            self._pool.rest(self._place, self._read)
        self._pool.lost(self._number, self._where)
