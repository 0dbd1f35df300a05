"""Frontends' connections in this process, each life in an event loop of its own, which can be killed at any bytecode.

The supervisor's side is the real one, as are the sockets. A kill is what a kill is: the loop never runs again, and the
descriptors are closed as the kernel closes them, without a word.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dis import opmap
from types import FrameType
from typing import Any

from aiohttp import web

from actorserve.actors.frontend.connections import connection, framing, pool, transport
from actorserve.actors.frontend.connections.pool import ConnectionPool
from actorserve.http.middleware.context import EXPECTS
from actorserve.http.transport.body import CONTINUE
from actorserve.http.transport.resume import ConnectionRecord, Predecessor, record_of
from actorserve.shm.journals import byte_ring, request_journal, response_journal
from actorserve.shm.journals.request_journal import RequestJournal
from actorserve.shm.journals.response_journal import ResponseJournal

MODULES = (pool, connection, framing, transport, request_journal, response_journal, byte_ring)
TRACED = {module.__file__ for module in MODULES}
MOST = 4
KEPT = MOST
ROOM = 1 << 17
EFFECTS = {opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "STORE_SUBSCR", "DELETE_SUBSCR")}
new_loop = asyncio.new_event_loop
TEXT = b"abc"  # a stream's, one event a character


class Killed(KeyboardInterrupt):
    """What stands for a kill: no loop catches it."""


class Lethal:
    """Raises before bytecode number `at` (from 1) of the traced modules; never if that is 0."""

    def __init__(self, at: int = 0) -> None:
        self._at = at
        self._passed = 0
        self._effect = False
        self.telling: list[int] = []  # those before which something has changed outside of the process, or may have

    def run(self, operation: Callable[[], object]) -> None:
        def inside() -> Iterator[object]:  # a generator: what an exception in a trace leaves on the stack goes with it
            yield operation()

        sys.settrace(self._trace)
        try:
            next(inside())
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in TRACED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._passed += 1
            if self._passed == self._at:
                raise Killed
            if self._effect:
                self.telling.append(self._passed)
            self._effect = frame.f_code.co_code[frame.f_lasti] in EFFECTS
        elif event == "call":
            self._effect = True  # whoever called may have done something
        return self._trace


class Socket(socket.socket):
    """Takes no more than `room` bytes, as the kernel does for a client that reads slowly."""

    room = 1 << 30

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:  # type: ignore[override]
        if not self.room:
            raise BlockingIOError
        sent = super().send(data[: self.room], flags)
        self.room -= sent
        return sent


class Life:
    """One life of a frontend."""

    def __init__(self, index: int, channel: socket.socket, files: tuple[int, int]) -> None:
        self.index = index
        self.loop = new_loop()
        self.served = 0
        self.fds: set[int] = set()
        self.sockets: list[socket.socket] = [channel]
        self._files = files
        self.loop.run_until_complete(self._start(channel))

    async def _start(self, channel: socket.socket) -> None:
        journal = RequestJournal(self._files[0], KEPT, ROOM)
        self.server = web.Server(self._handle, handler_cancellation=True, access_log=None, lingering_time=9)
        self.given_up: list[int] = []
        answers, given_up = ResponseJournal(self._files[1], KEPT), self.given_up.extend
        self.pool = ConnectionPool(channel, journal, answers, self.server, given_up=given_up)

    # --- what it does --------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The body says what to do: to move to the other frontend, to stream, to wait; else it is the answer."""
        self.served += 1
        if request.path == "/early":
            return web.Response(body=b"early")
        record = record_of(request)
        assert record is not None
        if EXPECTS in request and not request.content.is_eof():
            record.interim(CONTINUE)
        body = await request.read()
        if body == b"wait":
            await asyncio.Event().wait()
        if body.startswith(b"move"):
            before = record.predecessor
            assert before is None or before.refs == [self.index]  # it never goes on with the other's slots
            record.stream([self.index], 1, 1)
            if self.index == 0 and record.move(1) and body != b"move, but answer":
                await asyncio.Event().wait()
        for _ in range(int(body[5:]) if body.startswith(b"pause") else 0):
            await asyncio.sleep(0)
        if not body.startswith(b"stream"):
            return web.Response(body=body)
        answer = await self._stream(request, record)
        for _ in range(int(body[6:] or 0)):  # turns before the handler ends, whose client has everything
            await asyncio.sleep(0)
        return answer

    async def _stream(self, request: web.BaseRequest, record: ConnectionRecord) -> web.StreamResponse:
        before: Predecessor | None = record.predecessor
        if before is None or not before.begun:
            record.go_on()
            record.stream([7], 1, 1)
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        writer = await response.prepare(request)
        assert writer is not None and request.transport is not None
        writer.send_headers()
        at = 0
        if before is not None and before.begun:
            at = before.characters[0]
            record.go_on()
        for end in range(at + 1, len(TEXT) + 1):
            record.note(0, end)
            request.transport.write(b"1\r\n%s\r\n" % TEXT[end - 1 : end])
            await asyncio.sleep(0)
        record.note_end()
        await response.write_eof()
        return response

    def records(self) -> list[Any]:
        """Of its connections."""
        return [protocol.record for protocol in self.server.connections]  # type: ignore[attr-defined]

    def move_all(self, frontend: int) -> list[bool]:
        return [record.move(frontend) for record in self.records()]

    # --- its end -------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        one_turn(self.loop)

    def kill(self) -> None:
        """The kernel closes what it had; nothing else happens, not even when Python collects what is left."""
        for one in self.sockets:
            one.close()
        for fd in self.fds:
            os.close(fd)
        tasks = asyncio.all_tasks(self.loop)
        self.loop.set_exception_handler(lambda loop, context: None)
        self.loop.close()
        vars(self.loop)["call_soon"] = lambda *arguments, **options: None
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.get_coro().close()


def one_turn(loop: asyncio.AbstractEventLoop) -> None:
    """What is ready, and no waiting."""
    loop.call_soon(loop.stop)
    loop.run_forever()
