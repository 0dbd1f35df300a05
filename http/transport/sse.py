"""The stream of one request, server-sent events or lines of JSON, written to its transport by whoever dispatches the
engine's messages.

A slow reader costs memory for its own text only: while its transport is full, text is merged, and goes out as one event
when there is room again; a reader that takes nothing for STALL_S is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from aiohttp import web
from aiohttp.http import StreamWriter

from ..errors import ENDING, ApiError
from ..generation.choice import ENDED, Choice
from ..generation.idempotency import StreamProgress
from ..generation.job import Job
from ..generation.trail import ALIVE, BEGUN, CLOSED, ORIGIN, Origin, reached
from ..middleware.context import CLOSES
from ..output.writer import EVENTS, LongWriter, Writer
from .resume import record_of

STALL_S = 30.0
PROGRESS_S = 0.25  # between two events that say how far a prompt has come
KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which clients pass over
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class PreparedResponse(web.StreamResponse):
    """One whose headers wait for whoever sends them."""

    _send_headers_immediately = False


class EventStream:
    """The streamed answer to one request."""

    def __init__(
        self,
        request: web.Request,
        job: Job,
        writer: Writer,
        start: StreamProgress,
        keep_alive_s: float = 0,
        origin: Origin | None = None,
    ) -> None:
        """`start`: what the client has of this stream, from a predecessor or by an earlier request.

        `keep_alive_s`: when nothing was written for so long, a comment is; 0: never. With its `origin` the stream says
        how another server can go on with it.
        """
        self._origin = origin
        self._request = request
        self._job = job
        self._writer = writer
        self._begun, self._closed = start.begun, start.closed
        self._over = {index for index, state in enumerate(start.states) if state & ENDED}
        self._resumed = start.resumed and origin is not None
        # choices of which a client has something that whoever goes on with this stream was not told
        self._behind = {index for index, state in enumerate(start.states) if state} if self._resumed else set()
        self._waiting: dict[int, Choice] = {}  # choices with text that found the transport full
        self._full: asyncio.Task[None] | None = None  # runs while the transport is
        self._chunked = False
        self._head: tuple[web.StreamResponse, StreamWriter] | None = None  # that is ready, and not out
        self._transport: asyncio.Transport | None = None
        self._connection = request.protocol
        self._record = record_of(request)
        self._loop = asyncio.get_running_loop()
        self._keep_alive_s = keep_alive_s if writer.media_type == EVENTS else 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._progress: Callable[[], bytes] | None = None
        self._progress_timer: asyncio.TimerHandle | None = None
        self._written_at = self._loop.time()
        self._response: web.StreamResponse | None = None  # whose headers are out
        self._over_and_out = False  # the handler has ended

    async def tell(self, before: Callable[[EventStream], Awaitable[None]] | None = None) -> web.StreamResponse:
        """All of it, from now on. `before`: what its beginning waits for."""
        try:
            if before is not None:
                await before(self)
            response = await self.begin()
            await self.end(response)
            return response
        finally:
            self.close()

    def tell_progress(self, progress: Callable[[], bytes]) -> None:
        """Until something has come, write what this says every now and then."""
        self._progress = progress

    async def prepare(self) -> None:
        """Make the headers ready before anything has come, so that they go out with the first text, in the turn that
        brings it. Until then nothing is written, and `withdraw` makes room for another answer.
        """
        await self._make_head()
        self._job.opener = self._open_in_time

    def withdraw(self) -> None:
        """What was prepared is not the answer, unless it is out."""
        self._job.opener = None
        if self._head is not None:
            self._head[1].chunked = False  # aiohttp has one writer for all that is made ready to answer a request
            self._head = None

    async def begin(self) -> web.StreamResponse:
        """Send the headers and whatever has come so far, if they are not out. From here on an error can only be said
        inside the stream.
        """
        if self._response is None:
            self.withdraw()
            await self._make_head()
            self._open()
        assert self._response is not None
        return self._response

    async def _make_head(self) -> None:
        headers = HEADERS | {"Content-Type": f"{self._writer.media_type}; charset=utf-8"}
        if self._origin is not None:
            headers[ORIGIN] = self._origin.written()
        response = PreparedResponse(headers=headers)
        if self._request.version >= (1, 1):
            response.enable_chunked_encoding()
            self._chunked = True
        else:
            response.force_close()
        writer = await response.prepare(self._request)
        assert isinstance(writer, StreamWriter), "nothing was answered yet"
        self._head = response, writer

    def _open_in_time(self) -> None:
        """Unless the client has gone, or the headers should say by now that the connection is closed: then whoever
        waits begins anew.
        """
        transport, closes = self._request.transport, self._request.app.get(CLOSES)
        if transport is not None and not transport.is_closing() and not (closes is not None and closes()):
            self._open()

    def _open(self) -> None:
        assert self._head is not None
        (self._response, writer), self._head = self._head, None
        writer.send_headers()
        self._transport = self._request.transport
        self._written_at = self._loop.time()
        if self._record is not None:
            self._record.go_on()  # the head has gone out already, where a predecessor has begun
        if self._keep_alive_s:
            self._keep_alive()
        if self._begun or self._job.started.done() or not (self._keep_alive_s or self._progress):
            self._listen()
        else:  # the head went out early: what stands before all text may not be known yet
            self._job.started.add_done_callback(self._has_started)
            self._write_progress()

    def _has_started(self, started: asyncio.Future[None]) -> None:
        if not started.cancelled() and started.exception() is None and not self._over_and_out:
            self._listen()

    def _listen(self) -> None:
        if not self._begun:
            self._begun = True
            self._note(len(self._job.choices), ENDED)
            first = b"".join(self._writer.first(choice) for choice in self._job.choices)
            self._write(first + BEGUN if self._origin is not None else first)
        elif self._resumed and not self._behind:
            self._write(BEGUN)
        self._job.listen(self)

    def _keep_alive(self) -> None:
        """Proxies give up a connection on which nothing comes. What waits for a slow reader is life enough."""
        now, due = self._loop.time(), self._written_at + self._keep_alive_s
        if self._full is None and now >= due:
            self._write(KEEP_ALIVE if self._origin is None else KEEP_ALIVE + ALIVE)
        self._timer = self._loop.call_at(max(due, now + self._keep_alive_s / 2), self._keep_alive)

    def _write_progress(self) -> None:
        if self._progress is None or self._job.started.done():
            return
        if self._full is None and (data := self._progress()):
            self._write(data if self._origin is None else data + ALIVE)
        self._progress_timer = self._loop.call_later(PROGRESS_S, self._write_progress)

    def _note(self, choice: int, state: int) -> None:
        if self._record is not None:
            self._record.note(choice, state)

    def update(self, choice: Choice) -> None:
        """New text, or the end, of a choice."""
        if self._full is not None:
            self._waiting[choice.index] = choice
        else:
            self._write(self._event(choice))

    def _event(self, choice: Choice) -> bytes:
        ended = choice.finish_reason is not None
        data = self._writer.update(choice)
        if not data or choice.index in self._over:
            return self._catch_up(choice, choice.index in self._over)
        if ended:
            self._over.add(choice.index)
        if self._record is not None or self._origin is not None:
            self._note(choice.index, self._writer.state(choice) | (ENDED if ended else 0))
            return data + self._trail(choice, ended)
        return data

    def _catch_up(self, choice: Choice, ended: bool) -> bytes:
        """Nothing of it is new to the client, and all that it has may be to whoever goes on with the stream."""
        if choice.index not in self._behind or not choice.has_come_again:
            return b""
        return self._trail(choice, ended)

    def _trail(self, choice: Choice, ended: bool) -> bytes:
        """What is said of it for another server."""
        if self._origin is None:
            return b""
        told = reached(choice.index, self._writer.state(choice) | (ENDED if ended else 0), *choice.take_trail())
        if choice.index not in self._behind:
            return told
        self._behind.discard(choice.index)
        return told if self._behind else told + BEGUN

    async def end(self, response: web.StreamResponse) -> None:
        """Wait for the end of the job, say what there is to say, and close the body."""
        failure: ApiError | None = None
        try:
            await asyncio.shield(self._job.done)
        except ApiError as error:
            if self._origin is not None and error.code == ENDING and self._transport is not None:
                self._transport.abort()  # whoever sees it break off goes on with it elsewhere
                return
            failure = error
        if self._full is not None:
            await self._full  # first: the last event's id or number says that all text is before it
        if failure is None and not self._closed and isinstance(self._writer, LongWriter):
            async for choice, event in self._writer.ends():
                self._note(choice.index, self._writer.state(choice) | ENDED)
                self._write(event)
                if self._full is not None:
                    await self._full  # what waits for a reader, and whoever goes on has to know, is one event
        last = self._writer.closing() if failure is None else self._writer.failed(failure)
        if not self._closed:
            self._note(len(self._job.choices) + 1, ENDED)
            self._write(last + CLOSED if self._origin is not None else last)
        elif self._resumed:
            self._write(CLOSED)
        if self._record is not None:
            self._record.note_end()
        if self._transport is not None:
            await self._patiently(self._transport, response.write_eof())

    def close(self) -> None:
        """The handler ends, in whatever way."""
        self._over_and_out = True
        self.withdraw()
        self._job.listener = None
        for timer in (self._timer, self._progress_timer):
            if timer is not None:
                timer.cancel()
        if self._full is not None:
            self._full.cancel()

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if not data or transport is None or transport.is_closing():
            return
        self._written_at = self._loop.time()
        transport.write(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)
        if self._full is None and self._connection.writing_paused:
            self._full = asyncio.get_running_loop().create_task(self._go_on(transport))

    async def _go_on(self, transport: asyncio.Transport) -> None:
        """Write what was merged meanwhile whenever there is room; what finds no reader goes nowhere."""
        while self._waiting or self._connection.writing_paused:
            if not await self._patiently(transport, self._connection._drain_helper()):
                break
            waiting, self._waiting = list(self._waiting.values()), {}
            for choice in waiting:
                self._write(self._event(choice))
        self._full = None

    async def _patiently(self, transport: asyncio.Transport, drain: Coroutine[None, None, None]) -> bool:
        """Await what needs room; cut off a reader that has taken nothing for STALL_S. Is it still there?"""
        task = asyncio.get_running_loop().create_task(drain)
        task.add_done_callback(look_at)
        try:
            while not task.done():
                left = transport.get_write_buffer_size()
                await asyncio.wait([task], timeout=STALL_S)
                if not task.done() and transport.get_write_buffer_size() >= left:
                    transport.abort()
        finally:
            task.cancel()
        return not transport.is_closing()


def look_at(task: asyncio.Task[None]) -> None:
    """A connection that was lost while somebody waited for it: its handler is cancelled anyway."""
    if not task.cancelled():
        task.exception()
