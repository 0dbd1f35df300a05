"""What a frontend asks of its supervisor, on the control socket, as commands of a terminal do."""

from __future__ import annotations

import asyncio
import socket

import msgspec

from actorserve.http.errors import ApiError, overloaded

from ..protocol.sockets.control_wire import (
    ANSWER_BYTES,
    SCALE,
    SCALE_PROGRESS,
    STATUS,
    Arguments,
    ControlCommand,
    NoArguments,
    ProgressRequest,
    Result,
    ScaleRequest,
    encode_request,
    read_answer,
)
from ..runtime.process import Context
from ..telemetry.discovery import peer_of

ANSWER_S = 30.0
CONFLICT = 409


class SupervisorLink:
    """One connection for each question: whoever asks may be killed at any time."""

    def __init__(self, context: Context) -> None:
        self._pid, self._name = context.supervisor
        self._board, system = context.board, context.system
        self._first_workers = [system.workers_of(engine)[0].position for engine in system.local_engines]

    @property
    def most(self) -> int:
        return len(self._first_workers)

    def engines(self) -> int:
        """Those that are not parked."""
        return sum(not self._board.is_parked(worker) for worker in self._first_workers)

    async def is_scaling(self) -> bool:
        """Or is another operation on actors under way?"""
        return bool((await self._ask(STATUS, NoArguments())).under_way)

    async def scale(self, engines: int) -> None:
        """Returns when so many serve. If this process dies meanwhile, its successor asks the same and joins."""
        number, seen = (await self._ask(SCALE, ScaleRequest(engines))).number, 0
        while not (news := await self._ask(SCALE_PROGRESS, ProgressRequest(number, seen))).done:
            seen += len(news.lines)
        if news.failed:
            raise ApiError(503, f"The server has {self.engines()} engines now: {news.failed}.")

    async def _ask(self, command: ControlCommand[Arguments, Result], arguments: Arguments) -> Result:
        """ApiError 409 with the supervisor's words if it refuses, 503 if it does not answer."""
        try:
            async with asyncio.timeout(ANSWER_S):
                line = await self._line(encode_request(command.name, arguments))
        except (OSError, TimeoutError):
            raise overloaded("The supervisor does not answer. Try again soon.") from None
        if not line:
            raise overloaded("The supervisor has too many questions. Try again soon.")
        answer = read_answer(line)
        if answer.error is not None:
            raise ApiError(CONFLICT, f"This cannot be done now: {answer.error}.")
        return msgspec.convert(answer.result, command.result)

    async def _line(self, request: bytes) -> bytes:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(f"\0{self._name}")  # at once or not at all, as is usual with such sockets
            if peer_of(connection)[0] != self._pid:
                raise ConnectionError("another process listens there")
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=ANSWER_BYTES)
        except OSError:
            connection.close()
            raise
        try:
            writer.write(request)
            return await reader.readline()
        finally:
            writer.close()
